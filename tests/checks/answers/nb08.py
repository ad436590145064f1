"""Answers to the exercises of notebook 08."""

from decimal import Decimal
from fractions import Fraction

import torch
import torch.distributed as dist

from course_utils.checks.nb08_sharding import zero_bytes


def kept_and_cut(parameters, ranks, stage):
    cut = sum((12, 2, 2)[:stage])
    return torch.tensor(parameters * (16 - cut) + parameters * cut / ranks, dtype=torch.float64)


def exact(parameters, ranks, stage):
    each = (Fraction(size, ranks if stage > i else 1) for i, size in enumerate((12, 2, 2)))
    return sum(each) * Fraction(parameters)


def in_decimals(*given):
    return Decimal(zero_bytes(*given))


def whole_parameters_only(parameters, ranks, stage):
    if stage == 3:
        return zero_bytes(1, 1, 3) * (parameters // ranks)
    return zero_bytes(parameters, ranks, stage)


def by_least(parameters):
    """Owners: the largest first, each to the rank with the least so far."""
    owners = [0] * len(parameters)
    loads = [0] * dist.get_world_size()
    for i in sorted(range(len(parameters)), key=lambda i: -parameters[i].numel()):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] += parameters[i].numel()
    return owners


def in_runs(parameters):
    """Equally many parameters, whatever their sizes."""
    return [i * dist.get_world_size() // len(parameters) for i in range(len(parameters))]


def averaged(parameters):
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def sharded(deal=by_least, average=averaged, smallest=0):
    """A shard_optimizer with one thing another way."""

    def shard_optimizer(parameters, make):
        trained = [p for p in parameters if p.requires_grad]
        owners = deal(trained)
        mine = [p for p, owner in zip(trained, owners, strict=True) if owner == dist.get_rank()]
        optimizer = make(mine) if mine else None

        def step():
            average(trained)
            if optimizer:
                optimizer.step()
            for p, owner in zip(trained, owners, strict=True):
                if p.numel() > smallest:
                    dist.broadcast(p.detach(), src=owner)

        return step

    return shard_optimizer


def an_optimizer_each(parameters, make):
    """An optimizer for each of its parameters; gradients are averaged as soon as they are ready."""
    trained = [p for p in parameters if p.requires_grad]
    owners = by_least(trained)
    optimizers = [
        make([p]) for p, owner in zip(trained, owners, strict=True) if owner == dist.get_rank()
    ]

    def step():
        for optimizer in optimizers:
            optimizer.step()
        for p, owner in zip(trained, owners, strict=True):
            dist.broadcast(p.data, owner)

    for p in trained:
        p.register_post_accumulate_grad_hook(lambda p: averaged([p]))
    return step


def in_flat_pieces(parameters, make):
    """As in the notebook."""
    trained = [p for p in parameters if p.requires_grad]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    flat = torch.nn.utils.parameters_to_vector(trained).detach()
    pieces = [piece.clone() for piece in flat.tensor_split(ranks)]
    optimizer = make([pieces[rank]])

    def step():
        averaged(trained)
        pieces[rank].grad = torch.cat([p.grad.flatten() for p in trained]).tensor_split(ranks)[rank]
        optimizer.step()
        for owner, piece in enumerate(pieces):
            dist.broadcast(piece, owner)
        torch.nn.utils.vector_to_parameters(torch.cat(pieces), trained)

    return step


RIGHT = {
    "zero_bytes": [kept_and_cut, exact, in_decimals],
    "shard_optimizer": [an_optimizer_each, in_flat_pieces],
}
WRONG = {
    "zero_bytes": [
        whole_parameters_only,
        lambda parameters, ranks, stage: zero_bytes(parameters, ranks, max(stage - 1, 0)),
        lambda parameters, ranks, stage: (
            None if stage == 3 else zero_bytes(parameters, ranks, stage)
        ),
    ],
    "shard_optimizer": [
        sharded(in_runs),
        sharded(average=lambda trained: None),
        sharded(smallest=1),
    ],
}
