"""Exercises of notebook 08: the bytes of the ZeRO stages, a sharded optimizer on real ranks."""

import itertools
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..machine import pick
from .compare import AtMost
from .exercise import exercise


def zero_bytes(parameters, ranks, stage):
    """Bytes on each rank: zero_bytes(7.5e9, 64, 0) is 120e9."""
    states = 12 / ranks if stage >= 1 else 12
    gradients = 2 / ranks if stage >= 2 else 2
    weights = 2 / ranks if stage >= 3 else 2
    return (weights + gradients + states) * parameters


def in_gigabytes(*given):
    return zero_bytes(*given) / 1e9


@exercise(zero_bytes, mistakes={"bytes are asked for, this is in gigabytes": in_gigabytes})
def _(answer):
    for parameters, ranks in ((7.5e9, 64), (7.5e9, 1), (1.3e9, 1000), (1000, 3)):
        for stage in range(4):
            yield f"zero_bytes({parameters:g}, {ranks}, {stage})", answer(parameters, ranks, stage)
    yield (
        "",
        "As in the ZeRO paper's figure 1: 120, 31.4, 16.6 and 1.9 GB for 7.5 billion parameters on "
        "64 ranks.",
    )


def shard_optimizer(parameters, make):
    """A function step(); the parameters start equal on all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    trained = [p for p in parameters if p.requires_grad]
    owners = []
    loads = [0] * ranks
    for p in trained:
        owners.append(loads.index(min(loads)))  # the rank that has least so far
        loads[owners[-1]] += p.numel()
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


CASES = {  # the optimizer, its states for each parameter, the layers' sizes
    "SGD": (partial(SGD, lr=0.05, momentum=0.9), 1, (6, 7, 5, 1)),
    "Adam": (partial(Adam, lr=0.05), 2, (1, 9, 9, 1, 1, 1, 1, 4, 4, 4, 4)),
    "Adam, two parameters": (partial(Adam, lr=0.05), 2, (1, 6)),
}


def layers(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers, equal on all ranks; of more than one, the second is frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))
    model[1:2].requires_grad_(False)
    return model.to(pick())


def backward(model: nn.Module, inputs: int, number: int) -> None:
    """Gradients on this rank's batch of this number, of shape (4, inputs)."""
    torch.manual_seed(10 * number + dist.get_rank())
    model.zero_grad()
    model(torch.randn(4, inputs).to(pick())).square().mean().backward()


@exercise(
    shard_optimizer,
    ranks=(3, 2),
    mistakes={
        "this steps on the sum of the ranks' gradients, not on their mean": on_the_sum,
    },
)
def _(answer):
    for case, (make, each, sizes) in CASES.items():
        model = layers(sizes)
        kept = [0]

        def count(optimizer: Optimizer, *_: object, kept: list[int] = kept) -> None:
            states = [t for state in optimizer.state.values() for t in state.values()]
            kept.append(sum(t.numel() for t in states if t.dim()))

        with register_optimizer_step_post_hook(count):
            step = answer([*model.parameters()], make)
            yield f"{case}: can what it returns be called", step if step is None else callable(step)
            for number in range(3):
                backward(model, sizes[0], number)
                step()
                yield f"{case}, the weights after step {number + 1}", dict(model.named_parameters())
        trained = [p.numel() for p in model.parameters() if p.requires_grad]
        most = each * (sum(trained) // dist.get_world_size() + max(trained))
        yield f"{case}, the numbers in the states that this rank keeps", AtMost(max(kept), most)
    yield (
        "",
        "The weights of the whole optimizer, and each rank keeps only the states of its own "
        "parameters.",
    )
