"""The instrument of the board of strategies: train the same GPT by any of them, and measure bytes, seconds and loss.

A strategy takes the whole model and returns what this rank trains of it, and a function of a batch, (inputs, targets),
that does forward and backward and returns the loss, or None on a rank that does not know it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..machine.devices import pick
from ..ranks.traffic import Traffic
from . import memory
from .data import Text
from .models import GPT


def measure(strategy: Callable, text: Text, *, sizes: dict[str, int], batch: int, steps: int = 12) -> dict[str, Any]:
    """Losses, traffic of a step, seconds a step, and bytes held: of this rank, on one CPU thread.

    The first step is a warm-up; in the second what autograd keeps is counted, in the third what is sent; the others are
    timed.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # about views changed in place: we change none
    model, step = strategy(GPT(len(text.vocabulary), **sizes).to(pick()))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, foreach=False)  # on GPUs: DTensors apart from others
    losses = []

    def once() -> None:
        optimizer.zero_grad()
        losses.append(step(*(ids.to(pick()) for ids in text.batch(len(losses), size=batch))))
        optimizer.step()

    once()
    with memory.Kept() as kept:
        once()
    with Traffic() as traffic:
        once()
    settle()
    began = time.perf_counter()
    for _ in range(steps - 3):
        once()
    settle()
    return {"losses": losses, "traffic": traffic, "seconds": (time.perf_counter() - began) / (steps - 3),
            "memory": memory.states(model, optimizer) | {"activations": kept.most}}


def trained(strategy: Callable, text: Text, *, sizes: dict[str, int], batch: int, steps: int) -> dict[str, Any]:
    """Losses and this rank's weights after some steps of SGD, whole ones by their names, and the strategy's notes.

    Notes: a dictionary that the strategy may return as a third value.
    """
    torch.set_num_threads(1)
    model = GPT(len(text.vocabulary), **sizes).to(pick())
    part, step, *notes = strategy(model)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.02, foreach=False)
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        losses.append(step(*(ids.to(pick()) for ids in text.batch(number, size=batch))))
        optimizer.step()
    mine = {id(parameter) for parameter in part.parameters()}
    weights = {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().cpu()
               for name, p in model.named_parameters() if id(p) in mine}
    return {"losses": losses, "weights": weights} | {key: value for note in notes for key, value in note.items()}


def all_reduce_seconds(count: int, turns: int = 25) -> float:
    """The median time of an all-reduce of `count` bytes."""
    tensor, times = torch.zeros(count // 4, device=pick()), []
    for _ in range(turns):
        dist.barrier()
        settle()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        settle()
        times.append(time.perf_counter() - began)
    return sorted(times)[turns // 2]


def settle() -> None:
    """Wait until an accelerator has done what it was given."""
    if pick().type != "cpu":
        torch.accelerator.synchronize()
