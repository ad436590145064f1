"""What a rank holds, in bytes: states, and what autograd keeps for backward; the same on a CPU and an accelerator."""

from __future__ import annotations

from collections import Counter
from typing import Self

import torch
from torch import Tensor, nn


class Kept:
    """`with Kept() as kept: …` counts the bytes of activations that autograd keeps, `now` and at the `most`.

    Parameters are there anyway and do not count; memory that several operations keep counts once. Of a `DTensor` this
    rank's part counts. The hooks are torch's own: torch.autograd.graph.saved_tensors_hooks.
    """

    def __init__(self) -> None:
        self.now = self.most = 0
        self._users: Counter[int] = Counter()  # address of the memory -> operations that keep it
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda held: held.tensor)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _keep(self, tensor: Tensor) -> _Held:
        return _Held(self, tensor)

    def _count(self, memory: torch.UntypedStorage, users: int) -> None:
        before = self._users[memory.data_ptr()]
        self._users[memory.data_ptr()] += users
        if before == 0 or before + users == 0:
            self.now += users * memory.nbytes()
        self.most = max(self.most, self.now)


class _Held:
    """A tensor that the graph holds; uncounted when the graph lets it go."""

    def __init__(self, kept: Kept, tensor: Tensor) -> None:
        self.kept, self.tensor, self.memory = kept, tensor.detach(), None
        if not isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter):
            self.memory = getattr(tensor, "_local_tensor", tensor).untyped_storage()
            kept._count(self.memory, 1)

    def __del__(self) -> None:
        if self.memory is not None:
            self.kept._count(self.memory, -1)


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, list[Tensor]]:
    """The model's parameters, their gradients, and what the optimizer keeps of them, counts of steps included."""
    parameters = list(model.parameters())
    kept = optimizer.state.values() if optimizer is not None else ()
    return {
        "parameters": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "optimizer": [value for state in kept for value in state.values() if torch.is_tensor(value)],
    }


def states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of the model's parameters, of their gradients and of what the optimizer keeps of them, on this rank.

    Of a `DTensor` this rank's part counts. A count of steps, one number, does not.
    """
    groups = tensors(model, optimizer)
    groups["optimizer"] = [kept for kept in groups["optimizer"] if kept.dim()]
    return {name: sum(getattr(t, "_local_tensor", t).nbytes for t in group) for name, group in groups.items()}
