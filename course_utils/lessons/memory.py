"""What a device holds, in bytes: at any moment, by kind, and what autograd saves; the same on a CPU and an accelerator.

Memory is what lies behind tensors: views share it, and it counts once. Of a `DTensor` this rank's part counts.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def storage(tensor: Tensor) -> UntypedStorage:
    """The memory behind a tensor, on this rank."""
    return getattr(tensor, "_local_tensor", tensor).untyped_storage()


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind these tensors."""
    return sum({memory.data_ptr(): memory.nbytes() for memory in map(storage, tensors)}.values())


def tensors(
    parameters: Iterable[Tensor], optimizer: torch.optim.Optimizer | None = None
) -> dict[str, list[Tensor]]:
    """These parameters, their gradients, and what the optimizer keeps of them, counts of steps included."""
    parameters = list(parameters)
    states = optimizer.state.values() if optimizer is not None else ()
    return {
        "parameters": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "optimizer states": [value for state in states for value in state.values() if torch.is_tensor(value)],
    }


class Alive(TorchDispatchMode):
    """`with Alive(tensors) as alive: …` adds up, after every operation of torch, the bytes that are there.

    Counted are the memory behind `tensors` and all that is made inside, for as long as somebody holds it: activations,
    gradients, gathered parameters, buffers of messages. FSDP2 empties memory that it will fill again, so sizes are read
    anew each time. Meta tensors have no memory.

    Attributes:
        samples: the bytes after each operation.
        largest: the bytes of the largest memory that an operation returned.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._memory: weakref.WeakSet[UntypedStorage] = weakref.WeakSet()
        self._see(tensors)
        self.samples: list[int] = []
        self.largest = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(hasattr(kind, "_local_tensor") for kind in types):  # a DTensor
            return NotImplemented  # what it does with its part on this rank comes here next
        made = operation(*args, **kwargs or {})
        self.largest = max(self.largest, self._see(value for value in tree_leaves(made) if type(value) is Tensor))
        self._sample(operation)
        return made

    def _sample(self, operation: Any) -> None:
        self.samples.append(self.now)

    @property
    def now(self) -> int:
        """The bytes that are there."""
        return sum(memory.nbytes() for memory in self._memory)

    @property
    def peak(self) -> int:
        """The most bytes at once."""
        return max(self.samples, default=0)

    def _see(self, tensors: Iterable[Tensor]) -> int:
        """Count these, too; bytes of the largest."""
        found = [storage(tensor) for tensor in tensors if not tensor.is_meta]
        self._memory.update(found)
        return max((memory.nbytes() for memory in found), default=0)


class Meter(Alive):
    """`with Meter(model, optimizer) as meter: …` counts the bytes of a training step by kind.

    "activations" is all that is neither a parameter, nor a gradient, nor a state of the optimizer: what is saved for
    the backward, and what is there for a moment. What was there before, the batch for instance, counts only once an
    operation returns a view of it.

    Args:
        budget: bytes; an operation after which more are there raises `MemoryError`, as a device would that has no more.

    Attributes:
        phase: a name that you set, for example "forward"; each operation remembers it.
        before: bytes that were there when it was made: parameters, gradients, states.
        by_kind: (phase, {kind: bytes}) after each operation.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, budget: float = float("inf")
    ) -> None:
        super().__init__(tensor for group in tensors(model.parameters(), optimizer).values() for tensor in group)
        self.optimizer, self.budget = optimizer, budget
        self.phase, self.before = "", self.now
        self.by_kind: list[tuple[str, dict[str, int]]] = []
        self._parameters = list(model.parameters())  # to look for them after every operation takes long
        self._fixed: dict[str, tuple[int, int]] = {}  # kind -> how many tensors, bytes

    def _sample(self, operation: Any) -> None:
        super()._sample(operation)
        for kind, group in tensors(self._parameters, self.optimizer).items():
            if len(group) != self._fixed.get(kind, (-1, 0))[0]:
                self._fixed[kind] = len(group), held(group)
        fixed = {kind: size for kind, (_, size) in self._fixed.items()}
        self.by_kind.append((self.phase, fixed | {"activations": self.samples[-1] - sum(fixed.values())}))
        if self.samples[-1] > self.budget:
            name = operation.__name__.split(".")[0]
            raise MemoryError(f"{self.phase or 'the step'} needs {self.samples[-1] / 1e6:.1f} MB at {name}, and the "
                              f"budget is {self.budget / 1e6:.1f} MB: smaller pieces, or fewer activations kept")

    def peaks(self) -> dict[str, dict[str, int]]:
        """{phase: {kind: bytes}} at the operation of each phase after which most is there."""
        found: dict[str, dict[str, int]] = {}
        for phase, kinds in self.by_kind:
            if phase not in found or sum(kinds.values()) > sum(found[phase].values()):
                found[phase] = kinds
        return found

    def curves(self) -> dict[str, tuple[list[int], list[float]]]:
        """{kind: (number of the operation, MB)}, for a picture of the step."""
        numbers = [*range(len(self.by_kind))]
        return {kind: (numbers, [kinds[kind] / 1e6 for _, kinds in self.by_kind]) for kind in self.by_kind[0][1]}


class SavedTensors(saved_tensors_hooks):
    """`with SavedTensors() as saved: …` counts the bytes that autograd saves for the backward: `now`, and their `peak`.

    Parameters are there anyway and do not count.
    """

    def __init__(self) -> None:
        super().__init__(self._save, lambda saved: saved.tensor)
        self.now = self.peak = 0
        self._users: Counter[int] = Counter()  # address of the memory -> operations that save it

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def _save(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor.detach())
        if not isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter):
            self._count(storage(tensor), 1)
            weakref.finalize(saved, self._count, storage(tensor), -1)
        return saved

    def _count(self, memory: UntypedStorage, users: int) -> None:
        """So many operations more, or fewer, save this memory."""
        before = self._users[memory.data_ptr()]
        self._users[memory.data_ptr()] += users
        if before == 0 or before + users == 0:
            self.now += users * memory.nbytes()
        self.peak = max(self.peak, self.now)


class _Saved:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
