"""Answers to the exercises of notebook 07."""

import contextlib
import itertools
import random
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_utils import pick
from course_utils.checks.nb07_ddp_pitfalls import train_in_pieces
from course_utils.lessons.models import mlp


def new():
    model = DDP(mlp().to(pick()))
    return model, SGD(model.parameters(), lr=0.1)


def step(model, optimizer, x, y, *, scale=1.0):
    optimizer.zero_grad()
    (scale * cross_entropy(model(x.to(pick())), y.to(pick()))).backward()
    optimizer.step()


def epochs(begin=lambda sampler, epoch: sampler.set_epoch(epoch), *, shuffle=None, wrap=True, **options):
    """train_epochs with one thing another way; `begin` is called with the sampler when an epoch begins."""

    def train_epochs(dataset, epochs):
        sampler = DistributedSampler(dataset, **options) if shuffle is None else None
        loader = DataLoader(dataset, 4, sampler=sampler, shuffle=shuffle)
        model, optimizer = new()
        for epoch in range(epochs):
            begin(sampler, epoch)
            for x, y in loader:
                step(model if wrap else model.module, optimizer, x, y)

    return train_epochs


def from_subsets(deal):
    """The rows of each epoch as a subset: `deal(rows, epoch)`."""

    def train_epochs(dataset, epochs):
        model, optimizer = new()
        for epoch in range(epochs):
            for x, y in DataLoader(Subset(dataset, deal(len(dataset), epoch)), 2):
                step(model, optimizer, x, y)

    return train_epochs


def dealt_anew(rows, epoch):
    return random.Random(epoch).sample(range(rows), rows)[dist.get_rank() :: dist.get_world_size()]


def own_share_shuffled(rows, epoch):
    mine = [*range(rows)][dist.get_rank() :: dist.get_world_size()]
    return random.Random(epoch).sample(mine, len(mine))


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


def accumulate(*, clear=True, divide=len, alone=lambda i, n: i < n - 1):
    def train_in_pieces(model, optimizer, pieces):
        if clear:
            optimizer.zero_grad(set_to_none=False)
        for i, (x, y) in enumerate(pieces):
            with model.no_sync() if alone(i, len(pieces)) else contextlib.nullcontext():
                (cross_entropy(model(x), y) / divide(pieces)).backward()
        optimizer.step()

    return train_in_pieces


def in_one(model, optimizer, pieces):
    step(model, optimizer, *(torch.cat(part) for part in zip(*pieces, strict=True)))


def divides_the_rate(model, optimizer, pieces):
    rate = optimizer.param_groups[0]["lr"]
    optimizer.param_groups[0]["lr"] = rate / len(pieces)
    accumulate(divide=lambda pieces: 1)(model, optimizer, pieces)
    optimizer.param_groups[0]["lr"] = rate


def empties_the_list(model, optimizer, pieces):
    train_in_pieces(model, optimizer, pieces)
    pieces.clear()


def saved(write=lambda model, path: torch.save(model.module.state_dict(), path), wait=dist.barrier, before=int):
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
    "train_epochs": [from_subsets(dealt_anew), epochs(seed=7)],
    "train_uneven": [padded_with_nothing,
                     uneven(train_on=lambda batches: [batches[i % len(batches)] for i in range(most(batches))])],
    "train_in_pieces": [in_one, accumulate()],
    "train_and_save": [saved(), saved(to_an_open_file, wait=lambda: dist.all_reduce(torch.ones(1, device=pick())))],
}
WRONG = {
    "train_epochs": [epochs(lambda sampler, epoch: None), from_subsets(own_share_shuffled),
                     epochs(lambda sampler, epoch: None, shuffle=True), epochs(wrap=False)],
    "train_uneven": [the_last_ones_alone, uneven(train_on=of_everybody), uneven(lambda model: model.no_sync()),
                     uneven(train_on=lambda batches: batches[:1])],
    "train_in_pieces": [divides_the_rate, accumulate(clear=False), accumulate(alone=lambda i, n: False),
                        empties_the_list],
    "train_and_save": [saved(wait=lambda: None), saved(before=dist.barrier, wait=lambda: None),
                       saved(wait=lambda: time.sleep(3)),
                       saved(lambda model, path: torch.save(model.state_dict(), path))],
}
