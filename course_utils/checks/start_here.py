"""Exercises of notebook 00: what has this machine, and which of it does a rank get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import torch

from .exercise import exercise, expect, wrong


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
    machines = [
        ("on this machine", None, 0),
        ("on a machine with no accelerator", "cpu", 0),
        ("on a machine with 4 CUDA GPUs", "cuda", 4),
        ("on a Mac with an Apple GPU", "mps", 1),
        ("on a machine with 2 Intel GPUs", "xpu", 2),
    ]
    for where, kind, count in machines:
        if kind is None:
            there = torch.accelerator.current_accelerator(check_available=True)
            kind, got = there.type if there else "cpu", answer()
        else:
            with _pretend(kind, count):
                got = answer()
        if got is not None and not isinstance(got, torch.device):
            wrong(f"{where[0].upper()}{where[1:]}: give a torch.device.", expected=torch.device(kind), got=got)
        expect(f"{where}: the kind of device", kind, got if got is None else got.type)
    return "Right here, and on four pretended machines: no accelerator, CUDA, Apple, Intel."


@contextmanager
def _pretend(kind: str, count: int) -> Iterator[None]:
    """Make torch answer as on a machine with `count` accelerators of `kind`, or none for "cpu"."""
    there = torch.device(kind) if count else None
    about = SimpleNamespace(name="pretended", total_memory=2**34, major=9, minor=0)
    with ExitStack() as stack:

        def say(module: object, **answers: object) -> None:
            for name, value in answers.items():
                stack.enter_context(mock.patch.object(module, name, lambda *_, _value=value, **__: _value))

        for module in (torch.cuda, torch.xpu):
            here = module is getattr(torch, kind, None)
            say(module, is_available=here, device_count=count * here, current_device=0, get_device_properties=about)
        say(torch.backends.mps, is_available=kind == "mps")
        say(torch.mps, is_available=kind == "mps", device_count=int(kind == "mps"), recommended_max_memory=2**33)
        say(torch.accelerator, is_available=count > 0, current_accelerator=there, device_count=count)
        say(torch.accelerator, current_device_index=0)
        yield


def rank_device(rank, ranks, gpus):
    """The name of a rank's device: a GPU each where there are enough, else the CPU for all."""
    return f"cuda:{rank}" if ranks <= gpus else "cpu"


@exercise(
    rank_device,
    "With enough GPUs, rank 0 takes GPU 0, rank 1 takes GPU 1, and so on.",
    "If one rank has to do without a GPU, all of them compute on the CPU: compare `ranks` with `gpus`.",
)
def _rank_device(answer):
    for ranks, gpus in ((4, 8), (4, 4), (4, 2), (4, 0), (1, 1)):
        plan = [rank_device(rank, ranks, gpus) for rank in range(ranks)]
        got = [answer(rank, ranks, gpus) for rank in range(ranks)]
        expect(f"{ranks} ranks on {gpus} GPUs, rank by rank", plan, got)
    return "A GPU each, or the CPU for all: the rule of `launch` and of `pick()`."


def threads_per_rank(cores, ranks):
    """Threads for each rank so that all ranks together keep the cores busy, and no more."""
    return max(1, int(cores // ranks))


@exercise(
    threads_per_rank,
    "Divide the cores among the ranks and leave the rest: `//`.",
    "A rank needs one thread at least, and a number of threads is a whole number even where `cores` is 1.5.",
)
def _threads_per_rank(answer):
    for cores, ranks in ((8, 4), (2, 4), (16, 3), (2.5, 1), (0.5, 1)):
        got = answer(cores, ranks)
        expect(f"threads_per_rank({cores}, {ranks})", threads_per_rank(cores, ranks), got)
        if type(got) is not int:
            wrong("A number of threads is an int.", expected=f"{threads_per_rank(cores, ranks)} (int)", got=f"{got!r}")
    return "Every core busy, none fought over: what `launch` sets in each rank."
