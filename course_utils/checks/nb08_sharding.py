"""Exercises of notebook 08: the bytes of the ZeRO stages, owners of parameters, a sharded optimizer on real ranks."""

import itertools
import random
from collections.abc import Callable, Iterator
from operator import index

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from ..machine import pick
from .compare import AtMost
from .exercise import exercise


def zero_bytes(parameters, ranks, stage):
    """Bytes on each rank: zero_bytes(7.5e9, 64, 0) is 120e9."""
    states = 12 / ranks if stage >= 1 else 12
    gradients = 2 / ranks if stage >= 2 else 2
    weights = 2 / ranks if stage >= 3 else 2
    return (weights + gradients + states) * parameters


@exercise(zero_bytes, mistakes={
    "bytes are asked for, this is in gigabytes": lambda *given: zero_bytes(*given) / 1e9,
})
def _(answer: Callable) -> Iterator[tuple]:
    for parameters, ranks in ((7.5e9, 64), (7.5e9, 1), (1.3e9, 8), (1000, 3)):
        for stage in range(4):
            yield f"zero_bytes({parameters:g}, {ranks}, {stage})", answer(parameters, ranks, stage)
    yield "", "As in the ZeRO paper's figure 1: 120, 31.4, 16.6 and 1.9 GB for 7.5 billion parameters on 64 ranks."


def deal_parameters(sizes, ranks):
    """The rank that owns each parameter: deal_parameters([1, 2, 3, 6], 2) -> [1, 1, 1, 0]."""
    owners, loads = [0] * len(sizes), [0] * ranks
    for number in sorted(range(len(sizes)), key=lambda i: -sizes[i]):  # the largest first
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += sizes[number]
    return owners


def largest(sizes: list[int], owners: list[int]) -> int:
    """How many parameters the fullest rank has."""
    return max(sum(size for size, o in zip(sizes, owners, strict=True) if o == owner) for owner in owners)


@exercise(deal_parameters)
def _(answer: Callable) -> Iterator[tuple]:
    draw = random.Random(0)
    cases = [([4, 4, 4, 4], 4), ([1, 2, 3, 6], 2), ([4096, 64, 4096, 64, 640, 10], 3), ([5, 1], 4), ([7], 1),
             *(([draw.randint(1, 9) for _ in range(7)], ranks) for ranks in (2, 3, 4))]
    for sizes, ranks in cases:
        call, given = f"deal_parameters({sizes}, {ranks})", [*sizes]
        owners = answer(given, ranks)
        yield f"{call}: how many owners it returns", owners if owners is None else len(owners)
        owners = [index(owner) for owner in owners]
        yield f"{call}: are its owners ranks", [0 <= owner < ranks for owner in owners]
        most = largest(sizes, deal_parameters(sizes, ranks))
        yield f"{call}: what the fullest rank gets", AtMost(largest(sizes, owners), most)
        yield f"{call}: the sizes afterwards, which were not to change", given
    yield "", "Every parameter has one owner, and no rank has more than it must."


def shard_optimizer(parameters, make):
    """A function step(); the parameters start equal on all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    trained = [p for p in parameters if p.requires_grad]
    owners = deal_parameters([p.numel() for p in trained], ranks)
    mine = [p for p, owner in zip(trained, owners, strict=True) if owner == rank]
    optimizer = make(mine) if mine else None  # torch's optimizers refuse an empty list

    def step():
        for p, owner in zip(trained, owners, strict=True):
            dist.reduce(p.grad, dst=owner)
        for p in mine:
            p.grad /= ranks
        if optimizer is not None:
            optimizer.step()
        for p, owner in zip(trained, owners, strict=True):
            dist.broadcast(p.detach(), src=owner)

    return step


def on_the_sum(parameters, make):
    for p in (p for p in parameters if p.requires_grad):
        p.register_hook(lambda grad: dist.get_world_size() * grad)
    return shard_optimizer(parameters, make)


class Trust(SGD):
    """SGD whose step is as long for each tensor as the tensor is, as in LARS: a piece of a tensor misleads it."""

    def step(self) -> None:
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.grad *= p.detach().norm() / p.grad.norm()
        super().step()


CASES = {  # the optimizer, its states for each parameter, the layers' sizes
    "SGD": (lambda parameters: SGD(parameters, lr=0.05, momentum=0.9), 1, (6, 7, 5, 3)),
    "Adam": (lambda parameters: Adam(parameters, lr=0.05), 2, (4, 4, 4, 4, 4)),
    "Adam, two parameters": (lambda parameters: Adam(parameters, lr=0.05), 2, (6, 3)),
    "steps as long as whole tensors": (lambda parameters: Trust(parameters, lr=0.05, momentum=0.9), 1, (6, 7, 5, 3)),
}


def layers(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers, equal on all ranks; of more than one, the second is frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))
    model[1:2].requires_grad_(False)
    return model.to(pick())


def backward(model: nn.Module, inputs: int, number: int) -> None:
    """Gradients on this rank's batch of this number, of shape (4, inputs)."""
    generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
    model.zero_grad()
    model(torch.randn(4, inputs, generator=generator).to(pick())).square().mean().backward()


@exercise(shard_optimizer, ranks=(3, 2), mistakes={
    "this steps on the sum of the ranks' gradients, not on their mean": on_the_sum,
})
def _(answer: Callable) -> Iterator[tuple]:
    for case, (make, each, sizes) in CASES.items():
        model, kept = layers(sizes), [0]

        def made(parameters: list, make: Callable = make, kept: list[int] = kept) -> Optimizer:
            optimizer = make([*parameters])
            optimizer.register_step_post_hook(lambda *_: kept.append(
                sum(t.numel() for state in optimizer.state.values() for t in state.values() if t.dim())))
            return optimizer

        step = answer([*model.parameters()], made)
        yield f"{case}: can what it returns be called", step if step is None else callable(step)
        for number in range(3):
            backward(model, sizes[0], number)
            step()
            yield f"{case}, the weights after step {number + 1}", dict(model.named_parameters())
        trained = [p.numel() for p in model.parameters() if p.requires_grad]
        most = each * largest(trained, deal_parameters(trained, dist.get_world_size()))
        yield f"{case}, the numbers in the states that this rank keeps", AtMost(max(kept), most)
    yield "", "The weights of the whole optimizer, and each rank keeps only the states of its own parameters."
