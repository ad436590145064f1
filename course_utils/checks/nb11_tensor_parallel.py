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
from .exercise import Values, exercise, patched
from .instruments import everyones


class Operations(TorchDispatchMode):
    """`count`s the floating-point operations of this rank's matrix products, a DTensor's, too."""

    def __enter__(self) -> Self:
        # which warns where triton is missing: not in the notebook
        from torch.utils.flop_counter import flop_registry

        self.count = 0
        self.formulas = flop_registry
        return super().__enter__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # what it does with its part comes here next
        result = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func.overloadpacket)
        # with which DTensor works out a shape
        if formula and FakeTensor not in types:
            self.count += formula(*args, **(kwargs or {}), out_val=result)
        return result


def other_gradients(parameters: dict[str, nn.Parameter], whole: nn.Module) -> Iterator[str]:
    """Names of those with numbers that have neither their gradient in the whole layer nor none."""
    for name, p in whole.named_parameters():
        grad = parameters[name].grad  # None where copies are computed with
        if grad is None or grad.shape != p.shape:
            continue
        if not (torch.isclose(grad, p.grad, rtol=1e-5, atol=1e-4) | (grad == 0)).all():
            yield name


def leaves(y: torch.Tensor) -> set[torch.Tensor]:
    """The tensors for which a backward pass from y computes gradients."""
    nodes, found = {y.grad_fn}, set()
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.add(node.variable)
        further = {one for one, _ in getattr(node, "next_functions", ()) if one} - nodes
        nodes |= further
        waiting += further
    return found


def forward_and_backward(answer: Callable, *wholes: nn.Module) -> Values:
    """Of `answer(x, layer)`, or of its layers if it is an MLP, beside those of the whole layer."""
    for whole, (rows, length, width) in zip(wholes, ((2, 9, 24), (3, 2, 40)), strict=True):
        filled(whole).to(pick())
        layer = copy.deepcopy(whole)
        where = f"x of shape ({rows}, {length}, {width})"
        parameters = dict(layer.named_parameters())
        torch.manual_seed(4)
        x, direction = (torch.randn(rows, length, width).to(pick()) for _ in range(2))
        same = x.clone()
        x.requires_grad_()
        parts = layer.children() if isinstance(layer, MLP) else [layer]
        with Traffic() as forward, Operations() as computed:
            y = answer(x, *parts)
            if isinstance(y, DTensor):
                y = y.full_tensor()
        yield f"{where}: the output", y
        yield f"{where}: x afterwards", x
        yield f"{where}: are gradients recorded afterwards", torch.is_grad_enabled()
        changed = [name for name, p in whole.named_parameters() if not p.equal(parameters[name])]
        yield f"{where}: parameters whose numbers are others afterwards", changed
        operations = 2 * rows * length * sum(p.numel() for p in parameters.values() if p.dim() == 2)
        if isinstance(layer, Attention):
            operations += 4 * rows * length**2 * width
        most = AtMost(computed.count, operations // dist.get_world_size())
        yield f"{where}: multiplications and additions, at most this rank's share", most
        with Traffic() as backward:
            y.backward(direction)
        yield f"{where}: the gradient of x", x.grad
        whole(same).backward(direction)
        others = [*other_gradients(parameters, whole)]
        yield f"{where}: weights that get another gradient than in the whole layer", others
        last = [*parameters.values()][-1]  # of which every rank has all
        # Nothing depends on k's bias, because softmax cancels it.
        cut = sum(p.numel() for name, p in parameters.items() if name != "k.bias") - last.numel()
        share = cut // dist.get_world_size() + last.numel()
        own = [getattr(leaf.grad, "_local_tensor", leaf.grad) for leaf in leaves(y) - {x}]
        missing = max(0, share - sum(int(grad.count_nonzero()) for grad in own))
        yield f"{where}: numbers of this rank's part of the layer that get no gradient", missing
        copies = everyones(last.grad is not None and last.grad.any().item())
        without = [rank for rank, has in enumerate(copies) if any(copies) and not has]
        yield f"{where}: ranks whose copy of the last bias gets no gradient", without
        yield f"{where}: all values are right; what is sent forward, in bytes", forward.order
        yield f"{where}: all values are right; what is sent backward, in bytes", backward.order


def mlp_part(x, up, down):
    """down(gelu(up(x))) from this rank's part of both layers: x (N, T, D) -> (N, T, D)."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # nn.Linear keeps (outputs, inputs)
    columns = up.weight.chunk(ranks)[rank], up.bias.chunk(ranks)[rank]
    hidden = gelu(linear(fan_out(x), *columns))  # (…, hidden/ranks) of (…, hidden)
    return add_up(linear(hidden, down.weight.chunk(ranks, dim=1)[rank])) + down.bias


def mistakes_with_sums(solution: Callable) -> dict[str, Callable]:
    """Answers whose sum is missing or late in forward, or missing in backward."""
    own_part = patched(solution, f"{__name__}.add_up", new=as_it_is)
    own_gradient = patched(solution, f"{__name__}.fan_out", new=as_it_is)

    def sum_of_biases(*given):
        return add_up(own_part(*given))

    return {
        "this is only what this rank's part of the layer gives: the ranks' parts are to be added "
        "up": own_part,
        "every rank adds the last bias, and then they are added up: it belongs there once, after "
        "the sum": sum_of_biases,
        "backward, this is only this rank's part of it: the parts are to be added up, "
        "once": own_gradient,
    }


@exercise(mlp_part, ranks=(2, 4), mistakes=mistakes_with_sums(mlp_part))
def _(answer):
    yield from forward_and_backward(answer, MLP(24), MLP(40))
    yield (
        "",
        "Equal to the whole MLP on 2 and 4 ranks, gradients too, with one all-reduce of one "
        "activation each way.",
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


def three_messages(x, attention):
    attention.q = Columns(attention.q)
    attention.k = Columns(attention.k)
    attention.v = Columns(attention.v)
    attention.out = Rows(attention.out)
    return attention(x)


@exercise(
    attention_part,
    ranks=(2, 4),
    mistakes={
        **mistakes_with_sums(attention_part),
        "q, k and v each send their part of x's gradient: one fan_out for the three adds first "
        "and sends once": three_messages,
    },
)
def _(answer):
    yield from forward_and_backward(answer, Attention(24, heads=4), Attention(40, heads=8))
    yield (
        "",
        "Equal to the whole attention on 2 and 4 ranks, with one all-reduce of one activation each "
        "way.",
    )
