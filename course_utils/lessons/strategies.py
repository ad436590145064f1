"""Train the same GPT by any strategy, and measure bytes, seconds and loss.

A strategy takes the whole model and returns what this rank trains of it, and a function of a batch, (inputs, targets),
that does forward and backward and returns the loss, or None on a rank that does not know it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..machine import pick
from ..ranks.traffic import Traffic
from . import memory
from .data import Text
from .models import GPT

STEPS = 12


def measure(strategy: Callable, text: Text, *, sizes: dict[str, int], batch: int) -> dict[str, Any]:
    """Losses, traffic of a step, seconds a step, and bytes held: of this rank, on one CPU thread.

    The first step is a warm-up; in the second what autograd saves is counted, in the third what is sent; the others are
    timed.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # about views changed in place: we change none
    model, step = strategy(GPT(len(text.vocabulary), **sizes).to(pick()))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, foreach=False)  # on GPUs: DTensors apart from others
    train = partial(_train, step, optimizer, text, batch)
    losses = train(range(1))
    with memory.SavedTensors() as saved:
        losses += train(range(1, 2))
    with Traffic() as traffic:
        losses += train(range(2, 3))
    began = _now()
    losses += train(range(3, STEPS))
    seconds = (_now() - began) / (STEPS - 3)
    held = {kind: memory.held(t for t in tensors if t.dim())  # without counts of steps
            for kind, tensors in memory.tensors(model, optimizer).items()}
    return {"losses": losses, "traffic": traffic, "seconds": seconds, "memory": held | {"activations": saved.peak}}


def weights_after(steps: int, strategy: Callable, text: Text, *, sizes: dict[str, int], batch: int) -> dict[str, Any]:
    """Losses and this rank's weights after some steps of SGD, whole ones by their names, and the strategy's notes.

    Notes: a dictionary that the strategy may return as a third value.
    """
    torch.set_num_threads(1)
    model = GPT(len(text.vocabulary), **sizes).to(pick())
    part, step, *notes = strategy(model)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.02, foreach=False)
    losses = _train(step, optimizer, text, batch, range(steps))
    mine = {id(parameter) for parameter in part.parameters()}
    weights = {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().cpu()
               for name, p in model.named_parameters() if id(p) in mine}
    return {"losses": losses, "weights": weights} | dict(*notes)


def _train(
    step: Callable, optimizer: torch.optim.Optimizer, text: Text, batch: int, numbers: range
) -> list[float | None]:
    losses = []
    for number in numbers:
        optimizer.zero_grad()
        losses.append(step(*(ids.to(pick()) for ids in text.batch(number, size=batch))))
        optimizer.step()
    return losses


def all_reduce_seconds(count: int) -> float:
    """The median time of 25 all-reduces of `count` bytes."""
    tensor, times = torch.zeros(count // 4, device=pick()), []
    for _ in range(25):
        dist.barrier()
        began = _now()
        dist.all_reduce(tensor)
        times.append(_now() - began)
    return sorted(times)[len(times) // 2]


def _now() -> float:
    """Seconds, when an accelerator has done what it was given."""
    if pick().type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()
