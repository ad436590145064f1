"""The memory of a training step, operation by operation: the same count on a CPU and on an accelerator."""

from __future__ import annotations

import weakref
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..errors import CourseError
from .memory import tensors

KINDS = ("parameters", "gradients", "optimizer states", "activations")


class BudgetExceeded(CourseError):
    """A step kept more bytes at once than its budget allows."""


class Meter(TorchDispatchMode):
    """`with Meter(model, optimizer) as meter: …` counts the bytes that are alive after every operation of torch.

    Memory counts once, however many tensors look at it, from the operation that makes it until the last tensor is gone.
    "activations" is all that is neither a parameter, nor a gradient, nor a state of the optimizer: what is kept for
    the backward, and what is there for a moment. What was there before, the batch for instance, does not count.

    Args:
        budget: bytes; an operation after which more are alive raises `BudgetExceeded`, as a device would that has
            no more.

    Attributes:
        phase: a name that you set, for example "forward"; each operation remembers it.
        before: bytes that were alive when it was made: parameters, gradients, states.
        samples: (phase, {kind: bytes}) after each operation.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, budget: float | None = None
    ) -> None:
        super().__init__()
        self.model, self.optimizer, self.budget = model, optimizer, budget
        self.phase = ""
        self.samples: list[tuple[str, dict[str, int]]] = []
        self._memory: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._now = 0
        for tensor in chain(*tensors(model, optimizer).values()):
            self._see(tensor)
        self.before = self._now

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = operation(*args, **kwargs or {})
        for value in tree_leaves(made):
            if isinstance(value, Tensor):
                self._see(value)
        groups = tensors(self.model, self.optimizer).values()
        fixed = [sum(tensor.untyped_storage().nbytes() for tensor in group) for group in groups]
        self.samples.append((self.phase, dict(zip(KINDS, [*fixed, self._now - sum(fixed)], strict=True))))
        if self.budget is not None and self._now > self.budget:
            raise BudgetExceeded(
                f"{self.phase or 'this step'} needs {self._now / 1e6:.1f} MB at {operation.__name__.split('.')[0]}, "
                f"and the budget is {self.budget / 1e6:.1f} MB: smaller pieces of the batch, or fewer activations kept"
            )
        return made

    @property
    def peak(self) -> int:
        """The most bytes alive at once."""
        return max((sum(kinds.values()) for _, kinds in self.samples), default=0)

    def peaks(self) -> dict[str, dict[str, int]]:
        """{phase: {kind: bytes}} at the operation of each phase after which most is alive."""
        found: dict[str, dict[str, int]] = {}
        for phase, kinds in self.samples:
            if phase not in found or sum(kinds.values()) > sum(found[phase].values()):
                found[phase] = kinds
        return found

    def curves(self) -> dict[str, tuple[list[int], list[float]]]:
        """{kind: (number of the operation, MB)}, for a picture of the step."""
        steps = list(range(len(self.samples)))
        return {kind: (steps, [kinds[kind] / 1e6 for _, kinds in self.samples]) for kind in KINDS}

    def _see(self, tensor: Tensor) -> None:
        memory = tensor.untyped_storage()
        if memory not in self._memory:
            self._memory.add(memory)
            self._now += memory.nbytes()
            weakref.finalize(memory, self._gone, memory.nbytes()).atexit = False

    def _gone(self, count: int) -> None:
        self._now -= count
