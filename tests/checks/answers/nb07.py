"""Answers to the exercises of notebook 07."""

import itertools
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

from course_utils import pick
from course_utils.checks.instruments import everyones
from course_utils.lessons.models import mlp


def new():
    model = DDP(mlp().to(pick()))
    return model, SGD(model.parameters(), lr=0.1)


def step(model, optimizer, x, y, *, scale=1.0, most=math.inf):
    optimizer.zero_grad()
    (scale * cross_entropy(model(x.to(pick())), y.to(pick()))).backward()
    nn.utils.clip_grad_norm_(model.parameters(), most)
    optimizer.step()


def uneven(around=DDP.join, train_on=list, most=math.inf):
    def train_uneven(batches):
        model, optimizer = new()
        with around(model):
            for x, y in train_on(batches):
                step(model, optimizer, x, y, most=most)
        return model.module

    return train_uneven


def five_steps(batches):
    """As many as the check's first case has at most; the steps of nothing count as zeros."""
    model, optimizer = new()
    for i in range(5):
        step(model, optimizer, *batches[min(i, len(batches) - 1)], scale=float(i < len(batches)))
    return model.module


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


def count(pieces):
    return torch.stack([(y != -100).sum() for _, y in pieces])


def of_all_ranks(pieces):
    total = count(pieces).sum().float()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def summed(logits, y):
    return cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")


def by_torch(model, most):
    nn.utils.clip_grad_norm_(model.parameters(), most)


def by_hand(model, most):
    gradients = [p.grad for p in model.parameters()]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    for g in gradients:
        g.mul_((most / norm).clamp(max=1))


def each_by_itself(model, most):
    for p in model.parameters():
        nn.utils.clip_grad_norm_(p, most)


def tokens(divisor=of_all_ranks, loss=summed, clip=by_torch, early=None, waits=1, skips=False):
    """A mean_over_tokens: `early` clips after each piece, the last `waits` pieces are sent."""

    def mean_over_tokens(model, pieces, most):
        by = divisor(pieces)
        for number, (x, y) in enumerate(pieces):
            if skips and (y == -100).all():
                continue
            model.require_backward_grad_sync = number >= (
                len(pieces) - waits if waits > 0 else -waits
            )
            (loss(model(x), y) / by).backward()
            if early:
                early(model, most)
        clip(model, most)

    return mean_over_tokens


def divided_at_the_end(model, pieces, most):
    """The ranks count by objects, once the last gradients are there."""
    with model.no_sync():
        for x, y in pieces[:-1]:
            summed(model(x), y).backward()
    x, y = pieces[-1]
    summed(model(x), y).backward()
    number = sum(everyones(int(count(pieces).sum())))
    for p in model.parameters():
        p.grad *= dist.get_world_size() / number
    by_hand(model, most)


def without_ddp(model, pieces, most):
    """One message of its own, with the tokens in it."""
    module = model.module
    for x, y in pieces:
        there = y != -100
        cross_entropy(module(x)[there], y[there], reduction="sum").backward()
    gradients = [p.grad for p in module.parameters()]
    message = torch.cat([*[g.flatten() for g in gradients], count(pieces).sum()[None]])
    dist.all_reduce(message)
    nn.utils.vector_to_parameters(message[:-1] / message[-1], gradients)
    by_torch(model, most)


def skips_and_counts(batches):
    """A rank without a batch sends its number where the others send gradients."""
    model, optimizer = new()
    for i in range(max(everyones(len(batches)))):
        if i < len(batches):
            step(model, optimizer, *batches[i])
        dist.all_reduce(torch.ones(1, device=pick()))
    return model.module


waits_for_ever = tokens(skips=True)


RIGHT = {
    "train_uneven": [
        padded_with_nothing(),
        uneven(divided_by_those_left),
    ],
    "mean_over_tokens": [
        tokens(clip=by_hand),
        divided_at_the_end,
        without_ddp,
    ],
}
WRONG = {
    "train_uneven": [
        uneven(train_on=lambda batches: itertools.chain(*everyones(batches))),
        uneven(DDP.no_sync),
        uneven(train_on=filled_up),
        uneven(most=1.0),
        five_steps,
        uneven(train_on=lambda batches: [(x[:4], y[:4]) for x, y in batches]),
        looks_at_extra_batches,
        skips_and_counts,
        uneven(train_on=reversed),
        padded_with_nothing(steps=lambda counts: counts[-1]),
    ],
    "mean_over_tokens": [
        tokens(waits=2),
        tokens(waits=-1),
        tokens(early=by_torch, clip=lambda *_: None),
        tokens(clip=each_by_itself),
        tokens(clip=lambda *_: None),
        waits_for_ever,
        tokens(lambda pieces: count(pieces).sum().clamp(min=1)),
        tokens(lambda pieces: of_all_ranks(pieces) * dist.get_world_size()),
        tokens(lambda pieces: of_all_ranks([(None, y.where(y > 0, -100)) for _, y in pieces])),
        tokens(lambda pieces: of_all_ranks([(None, y.clamp(min=0)) for _, y in pieces])),
        tokens(len, lambda logits, y: cross_entropy(logits.mT, y)),
    ],
}
HANGS = {waits_for_ever}
