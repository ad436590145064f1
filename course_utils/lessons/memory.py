"""What a device holds, in bytes: at any moment, by kind, and what autograd saves; the same on a CPU
and an accelerator.

Memory is what lies behind tensors: views share it, and it counts once. Of a `DTensor` this rank's
    part counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.module_tracker import ModuleTracker


def storages(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    """The memory behind tensors, on this rank; meta tensors have none."""
    there = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors if not tensor.is_meta]
    return [tensor.untyped_storage() for tensor in there]


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind these tensors."""
    sizes = {memory.data_ptr(): memory.nbytes() for memory in storages(tensors)}
    return sum(sizes.values())


def tensors(
    parameters: Iterable[Tensor], optimizer: torch.optim.Optimizer | None
) -> dict[str, list[Tensor]]:
    """These parameters, their gradients and the optimizer's states, counts of steps included."""
    parameters = list(parameters)
    states = []
    if optimizer:
        states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "parameters": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "optimizer states": [value for value in states if torch.is_tensor(value)],
    }


class Alive(TorchDispatchMode):
    """`with Alive(tensors) as alive: …` counts the bytes that are there after every operation.

    Counted are the memory behind `tensors` and all that is made inside, for as long as somebody
    holds it: activations, gradients, gathered parameters, buffers of messages. Meta tensors have no
    memory.

    Attributes:
        samples: the bytes after each operation; `operations`: their names.
        phases: {"forward", "backward" or "optimizer": the number of its first operation, from 1};
            the optimizer's is the first one after the backward.
        messages: (number from 1, name) of each operation that began a message.
        largest: the bytes of the largest memory that an operation returned.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._memory: weakref.WeakSet[UntypedStorage] = weakref.WeakSet()
        self._see(tensors)
        self.samples: list[int] = []
        self.operations: list[str] = []
        self.phases: dict[str, int] = {}
        self.messages: list[tuple[int, str]] = []
        self.largest = 0
        self._modules = ModuleTracker()  # knows whether a backward runs

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if any(hasattr(kind, "_local_tensor") for kind in types):  # a DTensor
            return NotImplemented  # what it does with its part on this rank comes here next
        made = operation(*args, **kwargs or {})
        largest = self._see([value for value in tree_leaves(made) if type(value) is Tensor])
        self.largest = max(self.largest, largest)
        # FSDP2 empties memory that it will fill again, so sizes are read anew each time.
        self.samples.append(sum(map(UntypedStorage.nbytes, self._memory)))
        self.operations.append(operation.__name__.split(".")[0])
        phase = "optimizer" if "backward" in self.phases else "forward"
        if self._modules.is_bw:
            phase = "backward"
        self.phases.setdefault(phase, len(self.samples))
        if operation.namespace == "c10d":
            self.messages.append((len(self.samples), operation.__name__))
        return made

    @property
    def peak(self) -> int:
        """The most bytes at once."""
        return max(self.samples, default=0)

    def _see(self, tensors: Iterable[Tensor]) -> int:
        """Count these, too; bytes of the largest."""
        found = storages(tensors)
        self._memory.update(found)
        return max((memory.nbytes() for memory in found), default=0)


class Meter(Alive):
    """`with Meter(model, optimizer) as meter: …` counts the bytes of a training step by kind.

    "activations" is all that is neither a parameter, nor a gradient, nor a state of the optimizer:
    what is saved for the backward, and what is there for a moment. What was there before, the batch
    for instance, counts only once an operation returns a view of it.

    Args:
        budget: bytes; an operation after which more are there raises `MemoryError`, as a device
            would that has no more.

    Attributes:
        kinds: {kind: bytes} after each operation.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, budget: float = float("inf")
    ) -> None:
        groups = tensors(model.parameters(), optimizer)
        super().__init__(tensor for group in groups.values() for tensor in group)
        self.optimizer, self.budget = optimizer, budget
        self.kinds: list[dict[str, int]] = []
        self._parameters = groups["parameters"]  # kept, because to look for them takes long
        self._fixed: dict[str, tuple[int, int]] = {}  # kind -> how many tensors, bytes

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        made = super().__torch_dispatch__(operation, types, args, kwargs)
        if made is NotImplemented:  # nothing was counted
            return made
        for kind, group in tensors(self._parameters, self.optimizer).items():
            if len(group) != self._fixed.get(kind, (-1, 0))[0]:
                self._fixed[kind] = len(group), held(group)
        fixed = {kind: size for kind, (_, size) in self._fixed.items()}
        self.kinds.append(fixed | {"activations": self.samples[-1] - sum(fixed.values())})
        if self.samples[-1] > self.budget:
            raise MemoryError(
                f"operation {len(self.samples)}, {operation.__name__.split('.')[0]}, needs "
                f"{self.samples[-1] / 1e6:.1f} MB, and the budget is {self.budget / 1e6:.1f} MB"
            )
        return made

    def curves(self) -> dict[str, tuple[list[int], list[float]]]:
        """{kind: (number of the operation, MB)}, for a picture of the step."""
        numbers = [*range(1, len(self.kinds) + 1)]
        found = {}
        for kind in self.kinds[0]:
            found[kind] = numbers, [kinds[kind] / 1e6 for kinds in self.kinds]
        return found


class SavedTensors(saved_tensors_hooks):
    """`with SavedTensors() as saved: …` counts what autograd holds for the backward.

    `saved.peak` is the most bytes at once. Parameters are there anyway and do not count.
    """

    def __init__(self) -> None:
        super().__init__(self._save, lambda saved: saved)
        self.peak = 0
        self._alive: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def __enter__(self) -> Self:  # ty: ignore[incompatible-method-override]  # torch's returns None
        super().__enter__()
        return self

    def _save(self, tensor: Tensor) -> Tensor:
        saved = tensor.detach()  # an object of its own, which goes with the graph
        owner = tensor if tensor._base is None else tensor._base
        if not isinstance(owner, nn.Parameter):
            self._alive.add(saved)
            self.peak = max(self.peak, held(self._alive))
        return saved
