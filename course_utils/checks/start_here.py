"""Exercises on what a machine has: what has this machine, which of it does a rank get, and ranks that share work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from numbers import Integral
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from ..machine import pick
from ..ranks.launch import launch
from ..ranks.traffic import Traffic
from .old import exercise, expect, wrong

TIME_LIMIT = 30.0  # seconds of one launch


def pick_device():
    """The accelerator of this machine, whatever its kind, or else the CPU."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator()
    return torch.device("cpu")


@exercise(
    pick_device,
    "`torch.cuda` knows NVIDIA and AMD GPUs only. Which module knows every kind?",
    "`torch.accelerator.is_available()` says whether there is one, `torch.accelerator.current_accelerator()` which.",
)
def _pick_device(answer):
    there = torch.accelerator.current_accelerator(check_available=True)
    answers = [("on this machine", there.type if there else "cpu", torch.accelerator.device_count(), answer(), False)]
    for where, kind, count, built in (
        ("on a machine with no accelerator", "cpu", 0, None),
        ("on a machine with 4 CUDA GPUs", "cuda", 4, "cuda"),
        ("on a Mac with an Apple GPU", "mps", 1, "mps"),
        ("on a machine with 2 Intel GPUs", "xpu", 2, "xpu"),
        ("on a machine with a torch built for CUDA and no GPU", "cpu", 0, "cuda"),
    ):
        with _pretend(kind, count, built) as tried:
            answers.append((where, kind, count, answer(), tried.made))
    if all(got is None or got is ... for *_, got, _ in answers):
        expect("on this machine", torch.device(answers[0][1]), answers[0][3])
    for where, kind, count, got, made in answers:
        if isinstance(got, torch.device) and got.type == kind and (got.index is None or got.index < max(1, count)):
            continue
        said = f"{where[0].upper()}{where[1:]}"
        if made:
            wrong(f"{said}: it tried to make a tensor there. The machine is pretended: torch can be asked what there "
                  "is, nothing can be made on it.", expected=f"a device of type {kind}", got=repr(got))
        if not isinstance(got, torch.device):
            wrong(f"{said}: give a torch.device.", expected=f"device(type='{kind}')", got=repr(got))
        if got.type == kind:
            wrong(f"{said}: there is no {got}.", expected=f"device(type='{kind}')", got=repr(got))
        wrong(f"{said}: another kind of device.", expected=f"device(type='{kind}')", got=repr(got))
    return "Right here, and on five pretended machines: no accelerator, CUDA, Apple, Intel, CUDA without a GPU."


class _Makes(TorchFunctionMode):
    """Notes whether a tensor was to be made on an accelerator, or moved to one."""

    made = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in () if func is torch.device else (*args, *(kwargs or {}).values()):
            if isinstance(value, (str, torch.device)) and str(value).partition(":")[0] in ("cuda", "mps", "xpu"):
                self.made = True
        return func(*args, **(kwargs or {}))


@contextmanager
def _pretend(kind: str, count: int, built: str | None) -> Iterator[_Makes]:
    """Make torch answer as on a machine with `count` accelerators of `kind`, in a torch built for `built`."""
    about = SimpleNamespace(name="pretended", total_memory=2**34, major=9, minor=0)
    with ExitStack() as stack:

        def say(module: object, **answers: object) -> None:
            for name, value in answers.items():
                stack.enter_context(mock.patch.object(module, name, lambda *_, _value=value, **__: _value))

        for module in (torch.cuda, torch.xpu):
            here = module is getattr(torch, kind, None)
            say(module, is_available=here, device_count=count * here, current_device=0, get_device_properties=about)
        say(torch.backends.mps, is_available=kind == "mps", is_built=built == "mps")
        say(torch.backends.cuda, is_built=built == "cuda")
        say(torch.mps, is_available=kind == "mps", device_count=int(kind == "mps"), recommended_max_memory=2**33)
        # The functions of torch.accelerator ask this one and the module of its kind.
        say(torch._C, _accelerator_getAccelerator=torch.device(built) if built else None)
        say(torch.accelerator, current_device_index=0)
        yield stack.enter_context(_Makes())


def rank_device(local_rank, ranks_here, gpus):
    """The name of a rank's device: a GPU each where there are enough on its machine, else the CPU for all of them."""
    return f"cuda:{local_rank}" if ranks_here <= gpus else "cpu"


@exercise(
    rank_device,
    "With enough GPUs, rank 0 of a machine takes GPU 0, rank 1 takes GPU 1, and so on.",
    "If one rank has to do without a GPU, all of them compute on the CPU: compare `ranks_here` with `gpus`.",
)
def _rank_device(answer):
    for ranks, gpus in ((4, 8), (4, 4), (4, 2), (4, 0), (1, 1), (1, 0), (2, 1), (12, 16), (9, 8)):
        plan = [rank_device(rank, ranks, gpus) for rank in range(ranks)]
        got = [answer(rank, ranks, gpus) for rank in range(ranks)]
        if any(isinstance(name, torch.device) for name in got):
            wrong("Give the name as a text.", expected=repr(plan[0]), got=repr(got[0]))
        expect(f"{ranks} ranks on a machine with {gpus} GPUs, rank by rank", plan, got)
    return "A GPU each, or the CPU for all: the rule of `launch` and of `pick()`."


def shared_sum(n):
    """The sum of the whole numbers below n, on every rank; every rank adds up each world-size-th of them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = torch.tensor(sum(range(rank, n, ranks)), device=pick())
    dist.all_reduce(total)
    return total.item()


@exercise(
    shared_sum,
    "A rank knows its number, dist.get_rank(), and how many there are, dist.get_world_size().",
    "range(rank, n, ranks) holds every ranks-th number from `rank` on: each number is in the range of one rank.",
    "Put the sum of your share into a tensor on pick(), call dist.all_reduce on it, and return its .item().",
)
def _shared_sum(answer):
    numbers = (10, 5, 4, 1_000_003)
    for ranks in (1, 2, 4):
        found = launch(_called, answer, numbers, ranks=ranks, time_limit=TIME_LIMIT, show=False).results
        for i, n in enumerate(numbers):
            where, total = f"shared_sum({n}) on {ranks} rank{'s' * (ranks > 1)}", n * (n - 1) // 2
            for rank, (results, _) in enumerate(found):
                _whole(f"{where}, rank {rank}", total, results[i])
            if ranks > 1 and not all(calls[i] for _, calls in found):
                wrong(f"{where}: the total is right, but the ranks exchanged nothing. Share the work.",
                      expected="a collective, such as dist.all_reduce", got="none")
    return "The same total on every rank: on 1, 2 and 4 of them."


def _called(answer, numbers):
    """On a rank: the learner's function for each n, and how many collectives it called."""
    results, calls = [], []
    for n in numbers:
        with Traffic() as traffic:
            results.append(answer(n))
        calls.append(len(traffic.order))
    return results, calls


def _whole(where: str, total: int, got: Any) -> None:
    if got is None or got is ...:
        if where.endswith("rank 0"):
            expect(where, total, got)
        wrong(f"{where}: every rank returns the total.", expected=total, got=repr(got))
    if isinstance(got, torch.Tensor) and got.dim() == 0:
        got = got.item()
    if isinstance(got, bool) or not isinstance(got, Integral):
        wrong(f"{where}: give a whole number.", expected=f"{total} (int)", got=f"{got!r} ({type(got).__name__})")
    if got != total:
        wrong(f"{where}: another total.", expected=total, got=got)
