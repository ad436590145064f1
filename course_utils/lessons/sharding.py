"""What a training step holds and sends on one rank, for notebooks 08 and 09."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..machine import pick
from ..ranks.traffic import Traffic
from . import memory


@dataclass(frozen=True)
class StepCost:
    """A step of one rank, measured; bytes are bytes for each parameter of the model.

    Attributes:
        alive: the bytes of all that is there, after each operation; `operations`: their names.
        phases: {"forward", "backward" and "optimizer": the number of its first operation, from 1}.
        messages: (number from 1, name) of each operation that began a message.
        kept: the bytes of parameters, of gradients, and of the optimizer's states, just before the
            optimizer's step.
        sent: the bytes that a ring sends, by collective.
        traffic: all messages, in bytes.
        types: the types of parameters and gradients.
        ms: the fastest forward and backward, in milliseconds.
    """

    alive: list[float]
    operations: list[str]
    phases: dict[str, int]
    messages: list[tuple[int, str]]
    kept: list[float]
    sent: dict[str, float]
    traffic: Traffic
    types: str
    ms: float

    @property
    def peak(self) -> float:
        """The most bytes at once."""
        return max(self.alive)

    def curve(self) -> tuple[list[float], list[float]]:
        """(x, `alive`) where it changes: x is 1 at the end of the backward, and 2 at the step's."""
        size, at = self.alive, self.phases["optimizer"] - 1
        ends = [0]
        for i in range(1, len(size)):
            if abs(size[i] - size[ends[-1]]) > 0.1:
                ends += [i - 1, i]
        ends.append(len(size) - 1)
        x = [i / at if i < at else 1 + (i - at) / (len(size) - at) for i in ends]
        return x, [size[i] for i in ends]


def forward_backward(model: nn.Module, rows: int = 1) -> None:
    """On four tokens a row, so that activations hardly count."""
    ids = torch.full((rows, 4), dist.get_rank(), device=pick())
    model(ids).float().square().mean().backward()


def measured(model: nn.Module, optimizer: Optimizer | None = None, *, rows: int = 1) -> StepCost:
    """Take some steps and measure the last; without an optimizer, forward and backward only."""
    seconds = []
    for _ in range(3):  # afterwards the states are there, and DDP's buckets are arranged
        began = time.perf_counter()
        forward_backward(model, rows)
        if pick().type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - began)
        if optimizer:
            optimizer.step()
        _clear(model, optimizer)

    counted = [_count(model, optimizer, rows) for _ in range(2)]
    # The backend may keep a copy for a moment longer, so the lower peak counts.
    alive, kept, traffic, types = min(counted, key=lambda found: found[0].peak)
    count = sum(p.numel() for p in model.parameters())
    return StepCost(
        [size / count for size in alive.samples],
        alive.operations,
        alive.phases,
        alive.messages,
        [size / count for size in kept],
        {name: size / count for name, size in traffic.sent.items()},
        traffic,
        types,
        1000 * min(seconds),
    )


def _count(
    model: nn.Module, optimizer: Optimizer | None, rows: int
) -> tuple[memory.Alive, list[int], Traffic, str]:
    there = (tensor for kind in _tensors(model, optimizer) for tensor in kind)
    with Traffic() as traffic, memory.Alive(there) as alive:
        forward_backward(model, rows)
        time.sleep(0.02)  # in which the backend lets go of its copies
        kept = [memory.held(kind) for kind in _tensors(model, optimizer)]
        if optimizer:
            optimizer.step()
        torch.empty(0)  # counts once more
    parameters, gradients, _ = _tensors(model, None)
    types = {str(tensor.dtype) for tensor in parameters + gradients}
    _clear(model, optimizer)
    return alive, kept, traffic, ", ".join(sorted(types))


def _tensors(model: nn.Module, optimizer: Optimizer | None) -> list[list[Tensor]]:
    """Parameters, with the shards that an optimizer has instead; gradients; states."""
    parameters = list(model.parameters())
    if optimizer:
        parameters += [p for group in optimizer.param_groups for p in group["params"]]
    return list(memory.tensors(parameters, optimizer).values())


def _clear(model: nn.Module, optimizer: Optimizer | None) -> None:
    # DDP's gradients lie in its buckets, which stay.
    none = not isinstance(model, DistributedDataParallel)
    (optimizer or model).zero_grad(set_to_none=none)
