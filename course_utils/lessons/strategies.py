"""Train the same GPT by any strategy, and measure bytes, seconds and loss.

A strategy takes the whole model and returns what this rank trains of it, and a function of a batch,
(inputs, targets), that does forward and backward and returns the loss, or None on a rank that does
not know it.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..machine import pick
from ..ranks.traffic import Traffic
from . import memory
from .data import Text
from .models import GPT


def measure(
    strategy: Callable,
    text: Text,
    *,
    sizes: dict[str, int],
    batch: int,
    steps: int,
    optimizer: Callable[..., Optimizer],
    lr: float = 3e-3,
) -> dict[str, Any]:
    """Train some steps (4 or more) on one CPU thread, and measure them on this rank.

    The second step counts what autograd saves, the third what is sent; those after it are timed.

    Returns:
        "losses"; "seconds" a step; "traffic"; "memory", bytes by kind; "weights", this rank's by
        name, gathered to whole ones; and what a dictionary holds that the strategy returns, too.
    """
    torch.set_num_threads(1)
    # It warns of views that are changed in place, and nobody changes any.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    whole = GPT(len(text.vocabulary), **sizes).to(pick())
    part, step, *notes = strategy(whole)
    updates = optimizer(part.parameters(), lr=lr)

    def train(number: int) -> float | None:
        x, y = text.batch(number, size=batch)
        updates.zero_grad()
        loss = step(x.to(pick()), y.to(pick()))
        updates.step()
        return loss

    losses = [train(0)]
    with memory.SavedTensors() as saved:
        losses.append(train(1))
    with Traffic() as traffic:
        losses.append(train(2))
    began = _now()
    for number in range(3, steps):
        losses.append(train(number))
    seconds = (_now() - began) / (steps - 3)

    held = {}
    for kind, tensors in memory.tensors(part.parameters(), updates).items():
        held[kind] = memory.held(t for t in tensors if t.dim())  # without counts of steps
    held["activations"] = saved.peak

    mine = set(part.parameters())
    weights = {}
    for name, p in whole.named_parameters():
        if p in mine:
            weight = p.full_tensor() if isinstance(p, DTensor) else p
            weights[name] = weight.detach().cpu()

    found = {"losses": losses, "seconds": seconds, "traffic": traffic, "memory": held}
    found["weights"] = weights
    for note in notes:
        found |= note
    return found


def _now() -> float:
    """Seconds, when an accelerator has done what it was given."""
    if pick().type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()
