"""The two ends of a layer that is split over ranks: what they do forward and, the other way round, backward.

Source: Shoeybi et al., Megatron-LM (2019), section 3, where they are called f and g.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..ranks.spans import span


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
