"""Layers that are split over ranks, and their two ends, forward and backward.

Source: Shoeybi et al., Megatron-LM (2019), section 3, where `fan_out` and `add_up` are f and g.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from ..errors import CourseError
from ..machine import pick
from ..ranks.spans import span
from ..ranks.traffic import Traffic
from .memory import SavedTensors
from .models import GPT


def mine(tensor: Tensor, dim: int = 0) -> Tensor:
    """This rank's part of what is cut evenly along `dim`."""
    ranks = dist.get_world_size()
    if tensor.shape[dim] % ranks:
        raise CourseError(
            f"{tensor.shape[dim]} of shape {tuple(tensor.shape)} cannot be cut into {ranks} equal "
            "parts: take a number of ranks that divides it."
        )
    return tensor.chunk(ranks, dim)[dist.get_rank()]


def all_reduced(x: Tensor) -> Tensor:
    """The sum of all ranks' `x`; their own is left as it is."""
    with span("all-reduce"):
        x = x.clone(memory_format=torch.contiguous_format)  # nccl wants it so
        dist.all_reduce(x)
    return x


class BothWays(torch.autograd.Function):
    """`BothWays.apply(x, forward, backward)`: forward(x), and backward(gradient) of x's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Callable, backward: Callable) -> Tensor:
        ctx.of_gradient = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple:
        return ctx.of_gradient(*gradients), None, None


def as_it_is(x: Tensor) -> Tensor:
    """`x`, as a new tensor with a place of its own in autograd's graph."""
    return x.view_as(x)


def fan_out(x: Tensor) -> Tensor:
    """Where a split layer begins: every rank takes the whole `x`.

    Backward, the parts of its gradient are added up.
    """
    return BothWays.apply(x, as_it_is, all_reduced)


def add_up(x: Tensor) -> Tensor:
    """Where it ends: the ranks' partial results are added up.

    Backward, every rank takes the whole gradient.
    """
    return BothWays.apply(x, all_reduced, as_it_is)


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
    """A linear layer from this rank's inputs.

    `leave` makes the partial sums whole; then the bias is added once.
    """

    def __init__(self, layer: nn.Linear, leave: Callable[[Tensor], Tensor] = add_up) -> None:
        super().__init__()
        self.leave = leave
        self.weight = nn.Parameter(mine(layer.weight, 1).detach().clone())
        self.bias = nn.Parameter(layer.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(linear(x, self.weight)) + self.bias


def by_hand(model: GPT) -> GPT:
    """Split attention and MLP of each block, in place."""
    for block in model.blocks:
        attention: Any = block.attention
        mlp: Any = block.mlp
        attention.q = Columns(attention.q)
        attention.k = Columns(attention.k)
        attention.v = Columns(attention.v)
        attention.out = Rows(attention.out)
        mlp.up = Columns(mlp.up)
        mlp.down = Rows(mlp.down)
    return model


def against_whole(
    block: nn.Module, whole: nn.Module, *, shape: tuple[int, int, int], sequence: bool = False
) -> tuple[float, Traffic, Traffic, int]:
    """Run this rank's part of a block and the whole one, forward and backward, on a random input.

    Args:
        shape: of the input, (N, T, D).
        sequence: a rank has some of the positions, as in sequence parallelism.

    Returns:
        The largest difference of output and gradients; what the forward and the backward sent;
        the bytes that autograd saved.
    """

    def own(tensor: Tensor) -> Tensor:
        return mine(tensor, dim=1) if sequence else tensor

    torch.manual_seed(0)
    # The gradient that would come back from later layers is a random direction.
    x, direction = torch.randn(2, *shape).to(pick())
    direction /= x[0].numel()
    part = own(x).clone().requires_grad_()
    with SavedTensors() as saved:
        with Traffic() as forward:
            y = block(part)
        with Traffic() as backward:
            y.backward(own(direction))

    x.requires_grad_()
    same = whole(x)
    same.backward(direction)
    grads: tuple[Any, Any] = part.grad, own(x.grad)
    pairs = [(y, own(same)), grads, *_gradients(block, whole)]
    worst = max((a - b).abs().max().item() for a, b in pairs)
    return worst, forward, backward, saved.peak


def _gradients(block: nn.Module, whole: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Of every weight: the split block's gradient, and this rank's part of the whole one's."""
    for p, q in zip(block.parameters(), whole.parameters(), strict=True):
        ours: Any = p.grad
        if isinstance(ours, DTensor):
            ours = ours.full_tensor()
        theirs: Any = q.grad
        # The dimension in which this rank has a part, if there is one.
        for dim in range(q.ndim):
            if q.shape[dim] != ours.shape[dim]:
                theirs = mine(theirs, dim)
        yield ours, theirs
