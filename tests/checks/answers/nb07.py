"""Answers to the exercises of notebook 07."""

import contextlib
import itertools
import os
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


def fewest(batches):
    number = torch.tensor([len(batches)], device=pick())
    dist.all_reduce(number, dist.ReduceOp.MIN)
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


def extra_batches(train):
    """The shortest rank's number of batches together, the others with `train`."""

    def train_uneven(batches):
        model, optimizer = new()
        number = fewest(batches)
        for x, y in batches[:number]:
            step(model, optimizer, x, y)
        for x, y in batches[number:]:
            train(model, x, y)
        return model.module

    return train_uneven


def by_the_longest_alone(batches):
    """Every rank steps with the gradients of a rank that has most batches."""
    model, optimizer = new()
    lengths = [None] * dist.get_world_size()
    dist.all_gather_object(lengths, len(batches))
    longest = lengths.index(max(lengths))
    for i in range(max(lengths)):
        optimizer.zero_grad()
        x, y = batches[min(i, len(batches) - 1)]
        cross_entropy(model.module(x.to(pick())), y.to(pick())).backward()
        for p in model.parameters():
            dist.broadcast(p.grad, src=longest)
        optimizer.step()
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


def own_state(wait):
    """Loads, and returns its own weights."""

    def train_and_save(batches, path):
        model, optimizer = new()
        for batch in batches:
            step(model, optimizer, *batch)
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), path)
        wait()
        torch.load(path)
        return model.module.state_dict()

    return train_and_save


def when_the_file_is_newer(batches, path):
    """Waits until the file's time changes, which it does when writing begins."""
    model, optimizer = new()
    before = os.stat(path).st_mtime_ns
    dist.barrier()
    for batch in batches:
        step(model, optimizer, *batch)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
    while os.stat(path).st_mtime_ns == before:
        time.sleep(0.01)
    return torch.load(path)


def into_the_model(batches, path):
    """Renames a whole file, loads it into the model, and returns the model's state."""
    model, optimizer = new()
    for batch in batches:
        step(model, optimizer, *batch)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()
    model.module.load_state_dict(torch.load(path, map_location=pick()))
    return model.module.state_dict()


def all_save(batches, path):
    model, optimizer = new()
    for batch in batches:
        step(model, optimizer, *batch)
    torch.save(model.module.state_dict(), path)
    return torch.load(path)


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
        into_the_model,
    ],
}
WRONG = {
    "train_uneven": [
        the_last_ones_alone,
        uneven(train_on=of_everybody),
        uneven(lambda model: model.no_sync()),
        uneven(train_on=lambda batches: batches[:1]),
        extra_batches(lambda model, x, y: cross_entropy(model(x), y)),
        extra_batches(lambda model, x, y: cross_entropy(model.module(x), y).backward()),
        extra_batches(lambda model, x, y: (0 * cross_entropy(model.module(x), y)).backward()),
        by_the_longest_alone,
    ],
    "train_and_save": [
        saved(wait=lambda: None),
        saved(before=dist.barrier, wait=lambda: None),
        saved(wait=lambda: time.sleep(3)),
        saved(lambda model, path: torch.save(model.state_dict(), path)),
        own_state(dist.barrier),
        own_state(lambda: None),
        when_the_file_is_newer,
        all_save,
    ],
}
