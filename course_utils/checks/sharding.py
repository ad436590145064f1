"""The exercises on sharding: what a rank keeps when the states are sharded, and who keeps what."""

from __future__ import annotations

import copy
import itertools
import operator
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..machine import pick
from ..ranks.launch import launch
from .old import exercise, expect, wrong
from .old_compare import difference, kind

RANKS = 3
SECONDS = 30.0  # a collective that some ranks never call ends here, in words


def zero_bytes(parameters, ranks, stage):
    states = 12 / ranks if stage >= 1 else 12
    gradients = 2 / ranks if stage >= 2 else 2
    weights = 2 / ranks if stage >= 3 else 2
    return (weights + gradients + states) * parameters


@exercise(
    zero_bytes,
    "Without sharding (stage 0) a parameter costs 2 + 2 + 12 = 16 bytes on every rank.",
    "Stage 1 divides the 12 by the number of ranks, stage 2 one 2 as well, stage 3 all three.",
)
def _zero_bytes(answer: Callable[[float, int, int], float]) -> str:
    for parameters, ranks in [(7.5e9, 64), (7.5e9, 1), (1.3e9, 8)]:
        for stage in range(4):
            expected, got = zero_bytes(parameters, ranks, stage), answer(parameters, ranks, stage)
            what = f"zero_bytes({parameters:g}, {ranks}, {stage})"
            if difference(expected / 1e9, got, 1e-3) == "":
                wrong(f"{what} is right in gigabytes.", expected=f"bytes: {expected:.6g}", got=got)
            expect(what, expected, got, tol=1e-6 * expected)
    return "As in the ZeRO paper's figure 1: 120, 31.4, 16.6 and 1.9 GB for 7.5 billion parameters on 64 ranks."


def deal_parameters(sizes, ranks):
    owners, loads = [0] * len(sizes), [0] * ranks
    for number in sorted(range(len(sizes)), key=lambda i: -sizes[i]):  # the largest first
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += sizes[number]
    return owners


@exercise(
    deal_parameters,
    "Keep what each rank has so far: loads = [0] * ranks. The next parameter goes to the rank with the least.",
    "The order matters: a large parameter that comes last spoils the balance. Deal the largest first.",
    "for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]): owner = loads.index(min(loads)), and so on; the list "
    "you return is in the order of `sizes`.",
)
def _deal_parameters(answer: Callable[[list[int], int], list[int]]) -> str:
    draw = random.Random(0)
    cases = [([4, 4, 4, 4], 4), ([1, 2, 3, 6], 2), ([4096, 64, 4096, 64, 640, 10], 3), ([5, 1], 4)]
    cases.append(([5, 4, 3, 3, 3], 2))
    cases += [([draw.randint(1, 9) for _ in range(9)], ranks) for ranks in (2, 3, 4)]
    for sizes, ranks in cases:
        call = f"deal_parameters({sizes}, {ranks})"
        got = answer(list(sizes), ranks)
        expected = deal_parameters(sizes, ranks)
        if not isinstance(got, (list, tuple)) or len(got) != len(sizes):
            expect(f"{call}: a rank for each parameter", expected, got)
        got = [_rank(call, owner, ranks) for owner in got]
        most, least = _largest(sizes, got, ranks), _largest(sizes, expected, ranks)
        if most > least:
            wrong(f"{call}: one rank gets more than it needs to.", expected=f"at most {least} for a rank",
                  got=f"{most}, dealt as {got}")
    return "Every parameter has one owner, and no rank has more than it must."


def _rank(call: str, owner: Any, ranks: int) -> int:
    """A whole number of any kind, numpy's and torch's included, that is a rank."""
    try:
        number = operator.index(owner)
    except (TypeError, RuntimeError):
        number = -1
    if isinstance(owner, bool) or not 0 <= number < ranks:
        what = f"{owner!r}, {kind(owner)}" if number < 0 else owner
        wrong(f"{call}: each entry is the number of a rank.", expected=f"0 to {ranks - 1}", got=what)
    return number


def _largest(sizes: list[int], owners: list[int], ranks: int) -> int:
    return max(sum(size for size, o in zip(sizes, owners, strict=True) if o == rank) for rank in range(ranks))


Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def shard_optimizer(parameters, make):
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


class Trust(torch.optim.Optimizer):
    """Momentum, with a step length for each tensor by its norm, as in LARS: a piece of a tensor misleads it."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(0.9).add_(p.grad, alpha=(p.norm() / (p.grad.norm() + 1e-8)).item())
                p.sub_(momentum, alpha=group["lr"])


CASES: dict[str, tuple[Make, tuple[int, ...], int]] = {  # name: optimizer, layers' sizes, states per parameter
    "SGD": (lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9), (6, 7, 5, 3), 1),
    "Adam": (lambda parameters: torch.optim.Adam(parameters, lr=0.05), (4, 4, 4, 4, 4), 2),
    "Adam, fewer parameters than ranks": (lambda parameters: torch.optim.Adam(parameters, lr=0.05), (6, 3), 2),
    "an optimizer that looks at whole tensors": (Trust, (6, 7, 5, 3), 1),
}


def _model(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers; of more than one, the second is frozen. Equal on all ranks."""
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in (p for layer in layers for p in layer.parameters()):
            p.copy_(torch.randn(p.shape, generator=generator) / 2)
    if len(layers) > 1:
        layers[1].requires_grad_(False)
    return nn.Sequential(*layers).to(pick())


def _train_sharded(answer: Callable[..., Any], case: str, count: int) -> dict[str, Any]:
    """`count` steps with the answer and with the whole optimizer: the weights of both, the states of the answer."""
    make, sizes, _ = CASES[case]
    mine = _model(sizes)
    reference = copy.deepcopy(mine)
    trained = [p for p in reference.parameters() if p.requires_grad]
    made: list[torch.optim.Optimizer] = []

    def recorded(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        made.append(make(list(parameters)))
        return made[-1]

    step, whole, steps = answer(list(mine.parameters()), recorded), make(trained), []
    if not callable(step):
        return {"step": step}
    for number in range(count):
        generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
        x = torch.randn(4, sizes[0], generator=generator).to(pick())
        for model in (mine, reference):
            model.zero_grad()
            model(x).square().mean().backward()
        for p in trained:
            dist.all_reduce(p.grad)
            p.grad /= RANKS
        whole.step()
        step()
        pairs = zip(mine.named_parameters(), reference.parameters(), strict=True)
        steps.append({name: (p.detach().cpu().clone(), q.detach().cpu().clone()) for (name, p), q in pairs})
    states = [t for o in made for state in o.state.values() for t in state.values() if torch.is_tensor(t) and t.dim()]
    return {"steps": steps, "made": len(made), "states": sum(t.numel() for t in states)}


@exercise(
    shard_optimizer,
    "Each parameter that trains has an owner: deal_parameters([p.numel() for p in trained], ranks). An optimizer made "
    "of this rank's own has states for no others; make([]) raises, so a rank that owns nothing makes none.",
    "In step(): the owner needs the mean gradient (dist.reduce(p.grad, dst=owner), then divided by the ranks) and "
    "steps its own.",
    "At last everybody needs the new values: dist.broadcast(p.detach(), src=owner) for every parameter that trains, in "
    "the same order on all ranks.",
)
def _shard_optimizer(answer: Callable[[list[nn.Parameter], Make], Callable[[], None]]) -> str:
    def step() -> None:
        """What the answer is to return."""

    for case, (_, sizes, per_parameter) in CASES.items():
        run = launch(_train_sharded, answer, case, 3, ranks=RANKS, time_limit=SECONDS, show=False)
        for rank, result in enumerate(run.results):
            if "step" in result:
                expect(f"What it returns on rank {rank}", step, result["step"])
            for number, pairs in enumerate(result["steps"]):
                for name, (got, expected) in pairs.items():
                    expect(f"{case}: {name} on rank {rank} after step {number + 1}", expected, got, tol=1e-5)
        if not any(result["made"] for result in run.results):
            wrong("The optimizer is to be built with make([…]).", expected="make called", got="make never called")
        trained = [p.numel() for p in _model(sizes).parameters() if p.requires_grad]
        limit = per_parameter * _largest(trained, deal_parameters(trained, RANKS), RANKS)
        for rank, result in enumerate(run.results):
            if result["states"] > limit:
                wrong(f"{case}: the weights are right, but rank {rank} keeps states that others could keep.",
                      expected=f"at most {limit} values of the {per_parameter * sum(trained)}",
                      got=f"{result['states']} values")
    return f"On {RANKS} ranks: the weights of the whole optimizer, and each rank keeps only the states of its own."
