"""Answers to the exercises of notebook 07."""

import io
import itertools
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.serialization import load, save

from course_utils import pick
from course_utils.checks.instruments import everyones
from course_utils.lessons.models import mlp


def new():
    model = DDP(mlp().to(pick()))
    return model, SGD(model.parameters(), lr=0.1)


def step(model, optimizer, x, y, *, scale=1.0):
    optimizer.zero_grad()
    (scale * cross_entropy(model(x.to(pick())), y.to(pick()))).backward()
    optimizer.step()


def uneven(around=DDP.join, train_on=list):
    def train_uneven(batches):
        model, optimizer = new()
        with around(model):
            for x, y in train_on(batches):
                step(model, optimizer, x, y)
        return model.module

    return train_uneven


def filled_up(batches):
    """As many batches on every rank; what a shorter one adds counts."""
    more = max(everyones(len(batches))) - len(batches)
    return batches + [batches[i % len(batches)] for i in range(more)]


def divided_by_those_left(model):
    return model.join(divide_by_initial_world_size=False)


def padded_with_nothing(steps=max):
    def train_uneven(batches):
        model, optimizer = new()
        for i in range(steps(everyones(len(batches)))):
            x, y = batches[min(i, len(batches) - 1)]
            step(model, optimizer, x, y, scale=float(i < len(batches)))
        return model

    return train_uneven


def looks_at_extra_batches(batches):
    """The shortest rank's number of batches together; the others without a backward."""
    model, optimizer = new()
    number = min(everyones(len(batches)))
    for x, y in batches[:number]:
        step(model, optimizer, x, y)
    for x, y in batches[number:]:
        cross_entropy(model(x), y)
    return model.module


def trained(batches):
    model, optimizer = new()
    for batch in batches:
        step(model, optimizer, *batch)
    return model


def write(model, path):
    torch.save(model.module.state_dict(), path)


def saved(write=write, wait=dist.barrier, give=lambda model, loaded: loaded, writers=(0,)):
    """train_and_save: the writers write, all `wait`, then load."""

    def train_and_save(batches, path):
        model = trained(batches)
        if dist.get_rank() in writers:
            write(model, path)
        wait()
        return give(model, torch.load(path, map_location=pick()))

    return train_and_save


def own_state(model, loaded):
    return model.module.state_dict()


def into_the_model(model, loaded):
    model.module.load_state_dict(loaded)
    return model.module.state_dict()


def when_the_file_is_newer(batches, path):
    """Waits until the file's time changes, which it does when writing begins."""
    before = os.stat(path).st_mtime_ns
    dist.barrier()
    model = trained(batches)
    if dist.get_rank() == 0:
        write(model, path)
    while os.stat(path).st_mtime_ns == before:
        time.sleep(0.01)
    return torch.load(path)


def by_keywords(batches, path):
    model = trained(batches)
    if dist.get_rank() == 0:
        save(obj=model.module.state_dict(), f=path)
    dist.barrier()
    return load(f=path)


def renamed(model, path):
    write(model, path + ".new")
    os.replace(path + ".new", path)


def to_an_open_file(model, path):
    with open(path, "wb") as file:
        write(model, file)


def by_bytes(model, path):
    write(model, buffer := io.BytesIO())
    Path(path).write_bytes(buffer.getvalue())


RIGHT = {
    "train_uneven": [
        padded_with_nothing(),
        uneven(divided_by_those_left),
    ],
    "train_and_save": [
        saved(to_an_open_file, wait=lambda: dist.all_reduce(torch.ones(1, device=pick()))),
        saved(renamed, give=into_the_model),
        saved(by_bytes),
        by_keywords,
    ],
}
WRONG = {
    "train_uneven": [
        uneven(train_on=lambda batches: itertools.chain(*everyones(batches))),
        uneven(DDP.no_sync),
        uneven(train_on=filled_up),
        uneven(train_on=lambda batches: [(x[:4], y[:4]) for x, y in batches]),
        looks_at_extra_batches,
        padded_with_nothing(steps=lambda counts: counts[-1]),
    ],
    "train_and_save": [
        saved(wait=lambda: time.sleep(3)),
        saved(lambda model, path: torch.save(model.state_dict(), path)),
        saved(give=own_state),
        when_the_file_is_newer,
        saved(writers=range(3), wait=lambda: None),
    ],
}
