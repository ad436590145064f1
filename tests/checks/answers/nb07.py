"""Answers to the exercises of notebook 07."""

import contextlib
import itertools
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

from course_utils import pick
from course_utils.lessons.models import mlp


def new():
    model = DDP(mlp().to(pick()))
    return model, SGD(model.parameters(), lr=0.1)


def step(model, optimizer, x, y, *, scale=1.0):
    optimizer.zero_grad()
    (scale * cross_entropy(model(x.to(pick())), y.to(pick()))).backward()
    optimizer.step()


def most(batches):
    number = torch.tensor([len(batches)], device=pick())
    dist.all_reduce(number, dist.ReduceOp.MAX)
    return int(number)


def uneven(around=lambda model: contextlib.nullcontext(), train_on=lambda batches: batches):
    def train_uneven(batches):
        model, optimizer = new()
        with around(model):
            for x, y in train_on(batches):
                step(model, optimizer, x, y)
        return model.module

    return train_uneven


def of_everybody(batches):
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, batches)
    return [*itertools.chain(*everyones)]


def padded_with_nothing(batches):
    model, optimizer = new()
    for i in range(most(batches)):
        step(model, optimizer, *batches[min(i, len(batches) - 1)], scale=float(i < len(batches)))
    return model


def the_last_ones_alone(batches):
    model, optimizer = new()
    for i, (x, y) in enumerate(batches):
        step(model if i < 2 else model.module, optimizer, x, y)
    for p in model.parameters():
        dist.broadcast(p.detach(), src=2)
    return model.module


def saved(
    write=lambda model, path: torch.save(model.module.state_dict(), path),
    wait=dist.barrier,
    before=int,
):
    """train_and_save: rank 0 writes, all `wait`, then load."""

    def train_and_save(batches, path):
        model, optimizer = new()
        for batch in batches:
            step(model, optimizer, *batch)
        before()
        if dist.get_rank() == 0:
            write(model, path)
        wait()
        return torch.load(path)

    return train_and_save


def to_an_open_file(model, path):
    with open(path, "wb") as file:
        torch.save(model.module.state_dict(), file)


RIGHT = {
    "train_uneven": [
        padded_with_nothing,
        uneven(train_on=lambda batches: [batches[i % len(batches)] for i in range(most(batches))]),
    ],
    "train_and_save": [
        saved(),
        saved(to_an_open_file, wait=lambda: dist.all_reduce(torch.ones(1, device=pick()))),
    ],
}
WRONG = {
    "train_uneven": [
        the_last_ones_alone,
        uneven(train_on=of_everybody),
        uneven(lambda model: model.no_sync()),
        uneven(train_on=lambda batches: batches[:1]),
    ],
    "train_and_save": [
        saved(wait=lambda: None),
        saved(before=dist.barrier, wait=lambda: None),
        saved(wait=lambda: time.sleep(3)),
        saved(lambda model, path: torch.save(model.state_dict(), path)),
    ],
}
