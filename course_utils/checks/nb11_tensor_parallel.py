"""Exercises of notebook 11, looked at on 2 and 4 real ranks: a part of an MLP, and of attention."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import gelu, linear, scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from ..lessons.models import MLP, Attention, filled
from ..lessons.tensor_parallel import Columns, Rows, add_up, as_it_is, fan_out
from ..machine import pick
from ..ranks.traffic import Traffic
from .compare import AtMost
from .exercise import exercise


class Operations(TorchDispatchMode):
    """`count`s the floating-point operations of matrix products on this rank; of a `DTensor`, those with its part."""

    def __enter__(self) -> Self:
        from torch.utils.flop_counter import (
            flop_registry,
        )  # which warns where triton is missing: not in the notebook

        self.count, self.formulas = 0, flop_registry
        return super().__enter__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # what it does with its part comes here next
        result = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func.overloadpacket)
        if formula and not any(
            issubclass(t, FakeTensor) for t in types
        ):  # with which DTensor works out a shape
            self.count += formula(*args, **(kwargs or {}), out_val=result)
        return result


def other_gradients(parameters: dict[str, nn.Parameter], whole: nn.Module) -> Iterator[str]:
    """Names of those that would not learn as in the whole layer: here each number has its gradient there, or none."""
    for name, p in whole.named_parameters():
        grad = parameters[name].grad  # None where copies are computed with
        if grad is None or grad.shape != p.shape:
            continue
        if not (torch.isclose(grad, p.grad, rtol=1e-5, atol=1e-5) | (grad == 0)).all():
            yield name


def forward_and_backward(answer: Callable, *wholes: nn.Module) -> Iterator[tuple]:
    """Of `answer(x, layer)`, or of its layers if it is an MLP, beside those of the whole layer."""
    for whole, (rows, length, width) in zip(wholes, ((2, 5, 24), (3, 2, 40)), strict=True):
        filled(whole).to(pick())
        layer, where = copy.deepcopy(whole), f"x of shape ({rows}, {length}, {width})"
        parameters = dict(layer.named_parameters())
        generator = torch.Generator().manual_seed(4)
        x, direction = (
            torch.randn(rows, length, width, generator=generator).to(pick()) for _ in range(2)
        )
        same, x = x.clone(), x.requires_grad_()
        with Traffic() as forward, Operations() as computed:
            y = answer(x, *(layer.children() if isinstance(layer, MLP) else [layer]))
            y = y.full_tensor() if isinstance(y, DTensor) else y
        yield f"{where}: the output", y
        yield f"{where}: x afterwards", x
        operations = 2 * rows * length * sum(p.numel() for p in parameters.values() if p.dim() == 2)
        operations += 4 * rows * length**2 * width if isinstance(layer, Attention) else 0
        most = AtMost(computed.count, operations // dist.get_world_size())
        yield f"{where}: multiplications and additions, at most this rank's share", most
        with Traffic() as backward:
            y.backward(direction)
        yield f"{where}: the gradient of x", x.grad
        whole(same).backward(direction)
        yield (
            f"{where}: weights that get another gradient than in the whole layer",
            [*other_gradients(parameters, whole)],
        )
        yield f"{where}: all values are right; what is sent forward, in bytes", forward.order
        yield f"{where}: all values are right; what is sent backward, in bytes", backward.order


def mlp_part(x, up, down):
    """down(gelu(up(x))) from this rank's part of both layers: x (N, T, D) -> (N, T, D)."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    columns = (
        up.weight.chunk(ranks)[rank],
        up.bias.chunk(ranks)[rank],
    )  # nn.Linear keeps (outputs, inputs)
    hidden = gelu(linear(fan_out(x), *columns))  # (…, hidden/ranks) of (…, hidden)
    return add_up(linear(hidden, down.weight.chunk(ranks, dim=1)[rank])) + down.bias


NO_SUM = (
    "this is only what this rank's part of the layer gives: the ranks' parts are to be added up"
)
MORE_BIASES = "every rank adds the last bias, and then they are added up: it belongs there once, after the sum"


@exercise(
    mlp_part,
    ranks=(2, 4),
    mistakes={
        NO_SUM: lambda x, up, down: Rows(down, as_it_is)(gelu(Columns(up)(x))),
        MORE_BIASES: lambda x, up, down: add_up(Rows(down, as_it_is)(gelu(Columns(up)(x)))),
        "backward, this is only this rank's part of it: the parts are to be added up, once": lambda x, up, down: (
            Rows(down)(gelu(Columns(up, as_it_is)(x)))
        ),
    },
)
def _(answer: Callable) -> Iterator[tuple]:
    yield from forward_and_backward(answer, MLP(24), MLP(40))
    yield (
        "",
        "Equal to the whole MLP on 2 and 4 ranks, gradients too, with one all-reduce of one activation each way.",
    )


def attention_part(x, attention):
    """attention(x) from this rank's heads: x (N, T, D) -> (N, T, D)."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def my_heads(layer):  # (N, heads/ranks, T, head) of (N, heads, T, head)
        mine = linear(x, layer.weight.chunk(ranks)[rank], layer.bias.chunk(ranks)[rank])
        return mine.unflatten(-1, (-1, attention.head)).transpose(1, 2)

    x = fan_out(x)
    mixed = scaled_dot_product_attention(
        *map(my_heads, (attention.q, attention.k, attention.v)), is_causal=True
    )
    out = attention.out.weight.chunk(ranks, dim=1)[rank]
    return add_up(linear(mixed.transpose(1, 2).flatten(2), out)) + attention.out.bias


def split(attention: Attention, enter: Callable = as_it_is, leave: Callable = add_up) -> Attention:
    attention.q, attention.k, attention.v = (
        Columns(part, enter) for part in (attention.q, attention.k, attention.v)
    )
    attention.out = Rows(attention.out, leave)
    return attention


@exercise(
    attention_part,
    ranks=(2, 4),
    mistakes={
        NO_SUM: lambda x, attention: split(attention, leave=as_it_is)(fan_out(x)),
        MORE_BIASES: lambda x, attention: add_up(split(attention, leave=as_it_is)(fan_out(x))),
        "q, k and v each send their part of x's gradient: one fan_out for the three adds first and sends once": lambda x, attention: (
            split(attention, fan_out)(x)
        ),
    },
)
def _(answer: Callable) -> Iterator[tuple]:
    yield from forward_and_backward(answer, Attention(24, heads=4), Attention(40, heads=8))
    yield (
        "",
        "Equal to the whole attention on 2 and 4 ranks, with one all-reduce of one activation each way.",
    )
