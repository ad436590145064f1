"""Train the same GPT by any strategy, and measure bytes, seconds and loss.

A strategy takes the whole model and returns what this rank trains of it, and a function of a batch, (inputs, targets),
that does forward and backward and returns the loss, or None on a rank that does not know it.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Adam, Optimizer

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
    optimizer: type[Optimizer] = Adam,
    lr: float = 3e-3,
) -> dict[str, Any]:
    """Train some steps (4 or more) on one CPU thread: losses, seconds a step, traffic, memory and weights of this rank.

    The second step counts what autograd saves, the third what is sent; those after it are timed. "memory" has bytes by
    kind, "weights" this rank's, whole ones, by name. A dictionary that the strategy returns, too, is in the result.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings(
        "ignore", message="FSDP2-wrapped module"
    )  # about views changed in place: we change none
    whole = GPT(len(text.vocabulary), **sizes).to(pick())
    part, step, *notes = strategy(whole)
    optimizer = optimizer(
        part.parameters(), lr=lr, foreach=False
    )  # on GPUs: DTensors apart from others

    def train(number: int) -> float | None:
        optimizer.zero_grad()
        loss = step(*(ids.to(pick()) for ids in text.batch(number, size=batch)))
        optimizer.step()
        return loss

    losses = [train(0)]
    with memory.SavedTensors() as saved:
        losses.append(train(1))
    with Traffic() as traffic:
        losses.append(train(2))
    began = _now()
    losses += map(train, range(3, steps))
    seconds = (_now() - began) / (steps - 3)
    held = {
        kind: memory.held(t for t in tensors if t.dim())  # without counts of steps
        for kind, tensors in memory.tensors(part.parameters(), optimizer).items()
    }
    mine = set(part.parameters())
    weights = {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().cpu()
        for name, p in whole.named_parameters()
        if p in mine
    }
    return {
        "losses": losses,
        "seconds": seconds,
        "traffic": traffic,
        "memory": held | {"activations": saved.peak},
        "weights": weights,
    } | dict(*notes)


def _now() -> float:
    """Seconds, when an accelerator has done what it was given."""
    if pick().type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()
