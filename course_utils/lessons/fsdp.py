"""By-hand sharding and FSDP2: the two halves of an all-reduce, when to send, and a span around each message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..ranks.spans import span

# The collectives that take one tensor, and no list of them: torch 2.13 named both anew.
all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


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


class _Message:
    """What FSDP2 asks for a buffer and calls to send: it does what torch's own does, inside a span."""

    def __init__(self, name: str, send: Callable[..., Any]) -> None:
        self.name, self.send = name, send

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, **how: Any) -> Any:
        """The span begins and ends on the stream of the message, which on a CPU is the only one."""
        with span(self.name, lane="compute" if output_tensor.device.type == "cpu" else "communication"):
            return self.send(output_tensor, input_tensor, group=group, **how)


def trace_messages(model: nn.Module) -> None:
    """From now on the all-gathers and reduce-scatters of every `fully_shard` in `model` are spans.

    On an accelerator they have a lane of their own, beside the arithmetic; on a CPU, where FSDP2 waits for each, they
    lie inside the forward and backward: `Timeline.flat()` cuts them out.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(_Message("all-gather", all_gather))
            module.set_custom_reduce_scatter(_Message("reduce-scatter", reduce_scatter))
