"""Layers that are split over ranks: their two ends, forward and backward, and what lies between them.

Sources: Shoeybi et al., Megatron-LM (2019), section 3, where `fan_out` and `add_up` are called f and g; Korthikanti et
al., Reducing Activation Recomputation in Large Transformer Models (2022), section 4.2.2, where `gather` and
`reduce_scatter` are g and its conjugate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..errors import CourseError
from ..ranks.spans import span
from . import one_tensor
from .models import GPT, Attention


def mine(tensor: Tensor, dim: int = 0) -> Tensor:
    """This rank's part of what is cut evenly along `dim`."""
    ranks = dist.get_world_size()
    if tensor.shape[dim] % ranks:
        raise CourseError(f"mine(…, dim={dim}): {tensor.shape[dim]} of shape {tuple(tensor.shape)} cannot be cut into "
                          f"{ranks} equal parts: take a number of ranks that divides it.")
    return tensor.chunk(ranks, dim)[dist.get_rank()]


def heads_each(attention: Attention) -> int:
    """How many heads a rank gets; they are dealt whole."""
    heads, ranks = attention.q.weight.shape[0] // attention.head, dist.get_world_size()
    if heads % ranks:
        raise CourseError(f"{heads} heads cannot be dealt to {ranks} ranks: each takes whole heads, so the number of "
                          "ranks must divide the number of heads.")
    return heads // ranks


def all_reduced(x: Tensor) -> Tensor:
    """The sum of all ranks' `x`; their own is left as it is."""
    with span("all-reduce"):
        x = x.clone()
        dist.all_reduce(x)
    return x


class _FanOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return all_reduced(gradient)


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return all_reduced(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


def fan_out(x: Tensor) -> Tensor:
    """Where a split layer begins: every rank takes the whole `x`; backward, the parts of its gradient are added up."""
    return _FanOut.apply(x)


def add_up(x: Tensor) -> Tensor:
    """Where it ends: the ranks' partial results are added up; backward, every rank takes the whole gradient."""
    return _AddUp.apply(x)


class Columns(nn.Module):
    """This rank's outputs of a linear layer; `enter` is what happens to the input."""

    def __init__(self, layer: nn.Linear, enter: Callable[[Tensor], Tensor] = fan_out) -> None:
        super().__init__()
        self.enter = enter
        self.weight = nn.Parameter(mine(layer.weight).detach().clone())
        self.bias = nn.Parameter(mine(layer.bias).detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.enter(x), self.weight, self.bias)


class Rows(nn.Module):
    """A linear layer from this rank's inputs; `leave` makes the partial sums whole, then the bias is added once."""

    def __init__(self, layer: nn.Linear, leave: Callable[[Tensor], Tensor] = add_up) -> None:
        super().__init__()
        self.leave = leave
        self.weight = nn.Parameter(mine(layer.weight, 1).detach().clone())
        self.bias = nn.Parameter(layer.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(linear(x, self.weight)) + self.bias


def by_hand(model: GPT, enter: Callable[[Tensor], Tensor] = fan_out, leave: Callable = add_up) -> GPT:
    """Split attention and MLP of each block, in place."""
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        heads_each(attention)
        for layer, names in ((attention, "qkv"), (mlp, ["up"])):
            for name in names:
                setattr(layer, name, Columns(getattr(layer, name), enter))
        attention.out, mlp.down = Rows(attention.out, leave), Rows(mlp.down, leave)
    return model


def gathered(x: Tensor) -> Tensor:
    """(N, T, D) of all ranks' (N, T/ranks, D)."""
    with span("all-gather"):
        part = x.transpose(0, 1).contiguous()  # collectives put parts together along dim 0
        whole = part.new_empty(len(part) * dist.get_world_size(), *part.shape[1:])
        one_tensor.all_gather(whole, part)
    return whole.transpose(0, 1).contiguous()


def scattered(x: Tensor) -> Tensor:
    """This rank's (N, T/ranks, D) of the sum of all ranks' (N, T, D)."""
    with span("reduce-scatter"):
        mine(x, 1)  # or it is said that T cannot be cut
        whole = x.transpose(0, 1).contiguous()
        part = whole.new_empty(len(whole) // dist.get_world_size(), *whole.shape[1:])
        one_tensor.reduce_scatter(part, whole)
    return part.transpose(0, 1).contiguous()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return gathered(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return scattered(gradient)


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return scattered(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gathered(gradient)


def gather(x: Tensor) -> Tensor:
    """`fan_out` where each rank has a part of the sequence: all of it forward; backward, the parts are added up."""
    return _Gather.apply(x)


def reduce_scatter(x: Tensor) -> Tensor:
    """`add_up` where each rank goes on with a part of the sequence."""
    return _ReduceScatter.apply(x)


class Largest(TorchDispatchMode):
    """`with Largest() as largest: …` measures the largest tensor that an operation returns on this rank, in `bytes`.

    Backward and views count, too; of a `DTensor` it is this rank's part, as what is computed with it is seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Mapping | None = None) -> Any:
        if DTensor in types:
            return NotImplemented  # what it does with its part comes here next
        result = func(*args, **(kwargs or {}))
        made = (x for x in tree_leaves(result) if type(x) is Tensor)
        self.bytes = max([self.bytes, *(min(x.nbytes, x.untyped_storage().nbytes()) for x in made)])
        return result
