"""What a sharded model keeps on a rank, in bytes, and what is there during a step; a span around FSDP2's messages."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..ranks.spans import span
from .one_tensor import all_gather, reduce_scatter


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes that lie behind these tensors on this rank, each storage once; of a `DTensor` the part that is here."""
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}.values())


class Alive(TorchDispatchMode):
    """`with Alive(tensors) as alive: …` adds up, after every operation of torch, the bytes that are there on this rank.

    Counted are the memory behind `tensors` and all that is made inside, each storage once and for as long as somebody
    holds it: gathered parameters, buffers of messages, gradients, activations. FSDP2 empties a storage that it will
    fill again, so sizes are read anew each time. Of a `DTensor` the part that is here counts, of meta tensors nothing.

    Attributes:
        samples: the bytes after each operation.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._memory: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.samples: list[int] = []
        self._see(tensors)

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = operation(*args, **kwargs or {})
        self._see(tree_leaves(made))
        self.samples.append(sum(memory.nbytes() for memory in self._memory))
        return made

    @property
    def most(self) -> int:
        """The most bytes at once."""
        return max(self.samples, default=0)

    def _see(self, made: Iterable[Any]) -> None:
        for value in made:
            tensor = value.to_local() if isinstance(value, DTensor) else value
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                self._memory.add(tensor.untyped_storage())


def when_ready(parameters: Iterable[Tensor], send: Callable[[], Any]) -> None:
    """Call `send` in each backward, once the gradients of all these parameters are there."""
    every = frozenset(parameters)
    missing = set(every)

    def one_more(parameter: Tensor) -> None:
        missing.discard(parameter)
        if not missing:
            missing.update(every)
            send()

    for parameter in every:
        parameter.register_post_accumulate_grad_hook(one_more)


class Messages:
    """What FSDP2 asks for a buffer and calls to send: it does what torch's own does, and takes note."""

    def __init__(self, name: str, send: Callable[..., Any]) -> None:
        self.name, self.send = name, send
        self._buffers: list[tuple[StorageWeakRef, int]] = []

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Room for one message; `held` counts it for as long as somebody holds it."""
        buffer = torch.empty(*size, dtype=dtype, device=device)
        self._buffers.append((StorageWeakRef(buffer.untyped_storage()), buffer.nbytes))
        return buffer

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, **how: Any) -> Any:
        """The span begins and ends on the stream of the message, which on a CPU is the only one."""
        with span(self.name, lane="compute" if output_tensor.device.type == "cpu" else "communication"):
            return self.send(output_tensor, input_tensor, group=group, **how)

    @property
    def held(self) -> int:
        """Bytes of the buffers that somebody still holds."""
        self._buffers = [(storage, size) for storage, size in self._buffers if not storage.expired()]
        return sum(size for _, size in self._buffers)


def watch(model: nn.Module) -> tuple[Messages, Messages]:
    """From now on the all-gathers and reduce-scatters of every `fully_shard` in `model` are spans; (gathers, scatters).

    On an accelerator they have a lane of their own, beside the arithmetic; on a CPU, where FSDP2 waits for each, they
    lie inside the forward and backward: `Timeline.flat()` cuts them out.
    """
    gathers, scatters = Messages("all-gather", all_gather), Messages("reduce-scatter", reduce_scatter)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(gathers)
            module.set_custom_reduce_scatter(scatters)
    return gathers, scatters
