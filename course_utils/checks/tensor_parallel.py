"""The exercises on tensor parallelism: an MLP and attention over several ranks with the least communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import gelu, linear, scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from ..lessons.models import MLP, Attention, filled
from ..lessons.tensor_parallel import add_up, fan_out
from ..machine import pick
from ..ranks.launch import launch
from ..ranks.traffic import Traffic
from .old import exercise, expect, wrong
from .on_ranks import home

SECONDS = 30.0
WIDTH, HEADS, ROWS, LENGTH = 24, 4, 2, 5
PAYLOAD = ROWS * LENGTH * WIDTH * 4  # bytes of one activation, float32
LINEAR = 2 * ROWS * LENGTH * WIDTH**2  # floating-point operations of a layer from WIDTH to WIDTH
OPERATIONS = {"mlp": 8 * LINEAR, "attention": 4 * LINEAR + 4 * ROWS * LENGTH**2 * WIDTH}  # of a whole forward


def mlp_part(x, up, down):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    columns = up.weight.chunk(ranks)[rank], up.bias.chunk(ranks)[rank]  # nn.Linear keeps (outputs, inputs)
    hidden = gelu(linear(fan_out(x), *columns))  # (…, hidden/ranks) of (…, hidden)
    return add_up(linear(hidden, down.weight.chunk(ranks, dim=1)[rank])) + down.bias


def attention_part(x, attention):
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def my_heads(layer):  # (N, heads/ranks, T, head) of (N, heads, T, head)
        mine = linear(x, layer.weight.chunk(ranks)[rank], layer.bias.chunk(ranks)[rank])
        return mine.unflatten(-1, (-1, attention.head)).transpose(1, 2)

    x = fan_out(x)
    mixed = scaled_dot_product_attention(*map(my_heads, (attention.q, attention.k, attention.v)), is_causal=True)
    out = attention.out.weight.chunk(ranks, dim=1)[rank]
    return add_up(linear(mixed.transpose(1, 2).flatten(2), out)) + attention.out.bias


def _run(answer: Callable[..., Tensor], kind: str) -> dict[str, Any]:
    """One forward and backward of the answer and of the whole layer on this rank."""
    mine, whole = (filled(MLP(WIDTH) if kind == "mlp" else Attention(WIDTH, HEADS)).to(pick()) for _ in range(2))
    given = dict(mine.named_parameters())
    arguments = (mine.up, mine.down) if kind == "mlp" else (mine,)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(ROWS, LENGTH, WIDTH, generator=generator).to(pick()).requires_grad_()
    same = x.detach().clone().requires_grad_()
    expected = whole(same)
    with Traffic() as forward, _Operations() as operations:
        y = answer(x, *arguments)
        y = y.full_tensor() if isinstance(y, DTensor) else y
    result = {"output": home((expected, y)), "operations": operations.count}
    if not isinstance(y, Tensor) or y.shape != expected.shape or not y.requires_grad:
        return result | {"grad": getattr(y, "requires_grad", False)}
    direction = torch.randn(y.shape, generator=generator).to(pick())
    with Traffic() as backward:
        y.backward(direction)
    expected.backward(direction)
    grads = {name: home((p.grad, given[name].grad)) for name, p in whole.named_parameters()}
    x = home((same.grad, x.grad))
    return result | {"grad": True, "x": x, "grads": grads, "forward": forward, "backward": backward}


class _Operations(TorchDispatchMode):
    """`count`s the floating-point operations of matrix products on this rank; of a `DTensor`, those with its part."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # which warns where triton is missing: not in the notebook

        super().__init__()
        self.count, self.formulas = 0, flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if DTensor in types:
            return NotImplemented  # what it does with its part comes here next
        result = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func.overloadpacket)
        if formula and not any(issubclass(t, FakeTensor) for t in types):  # with which DTensor works out a shape
            self.count += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _judge(answer: Callable[..., Tensor], kind: str, ranks: int) -> None:
    call = "mlp_part(x, up, down)" if kind == "mlp" else "attention_part(x, attention)"
    results = launch(_run, answer, kind, ranks=ranks, time_limit=SECONDS, show=False).results
    for rank, result in enumerate(results):
        _output(f"{call} on rank {rank} of {ranks}", result)
    most = OPERATIONS[kind] // ranks
    for rank, result in enumerate(results):
        if result["operations"] > most:
            wrong(f"Rank {rank} of {ranks} computes more than its part. The whole forward is {OPERATIONS[kind]:,} "
                  "multiplications and additions in matrix products; each rank is to do its share.",
                  expected=f"at most {most:,}", got=f"{result['operations']:,}")
        _x(f"The gradient of x on rank {rank} of {ranks}", *result["x"])
    for name in results[0]["grads"]:
        _parameter(name, [result["grads"][name] for result in results])
    for name in ("forward", "backward"):
        _traffic(name, results[0][name])


def _output(what: str, result: dict[str, Any]) -> None:
    expected, got = result["output"]
    if isinstance(got, Tensor) and got.shape == expected.shape and not torch.allclose(expected, got, atol=1e-5):
        off = (got - expected).flatten(0, -2)
        if torch.allclose(off, off[0].expand_as(off), atol=1e-5):
            wrong(f"{what} is off by the same vector in every row: the last bias is to be added once, after the sum.",
                  expected=expected, got=got)
    expect(what, expected, got, tol=1e-5)
    if not result["grad"]:
        wrong(f"{what} is right, but no gradient can flow back: what it returns is cut off from x. (dist.all_reduce "
              "is unknown to autograd, add_up is not.)", expected="an output with requires_grad",
              got="requires_grad=False")


def _parameter(name: str, pairs: list[tuple[Tensor, Tensor | None]]) -> None:
    """Each number has its gradient on one rank, or on all; where a copy was computed with, there is none to judge."""
    expected = pairs[0][0]
    got = [torch.zeros_like(expected) if grad is None else grad for _, grad in pairs]
    if all(grad is None for _, grad in pairs) or any(grad.shape != expected.shape for grad in got):
        return
    everywhere = all(torch.allclose(grad, expected, atol=1e-5) for grad in got)
    if everywhere or torch.allclose(sum(got), expected, atol=1e-5):
        return
    wrong(f"The gradient of {name} is wrong: each rank is to have that of the part it computes with.",
          expected=f"the whole gradient, added up over {len(got)} ranks",
          got=f"off by {(sum(got) - expected).abs().max().item():.3g} at most")


def _x(what: str, expected: Tensor, got: Tensor | None) -> None:
    if got is None:
        wrong(f"{what} is missing.", expected=expected, got="None")
    if not torch.allclose(expected, got, atol=1e-5):
        wrong(f"{what} is only this rank's part of it, or a multiple. Every rank's part of the layer uses x: backward, "
              "the parts are to be added up, once.", expected=expected, got=got)


def _traffic(name: str, traffic: Traffic) -> None:
    if traffic.calls != {"all-reduce": 1} or traffic.bytes["all-reduce"] != PAYLOAD:
        dealt = {"broadcast", "scatter"} & traffic.calls.keys()
        tip = " The weights are everywhere: parallelize_module(…, src_data_rank=None) sends none." if dealt else ""
        wrong(f"The values are right. The {name} pass can do with less communication.{tip}",
              expected=f"1 all-reduce of {PAYLOAD} bytes",
              got=", ".join(f"{n} {kind} of {traffic.bytes[kind]} bytes" for kind, n in traffic.calls.items())
              or "nothing sent")


@exercise(
    mlp_part,
    "Split up by its outputs and down by its inputs: gelu works on each number alone, so nothing need be sent between.",
    "nn.Linear keeps (outputs, inputs): up.weight.chunk(ranks)[rank] and up.bias.chunk(ranks)[rank], but "
    "down.weight.chunk(ranks, dim=1)[rank].",
    "add_up(linear(gelu(linear(fan_out(x), …)), …)) + down.bias: the last bias once, after the sum.",
)
def _mlp_part(answer: Callable[..., Tensor]) -> str:
    for ranks in (2, 4):
        _judge(answer, "mlp", ranks)
    return f"Equal to the whole MLP on 2 and 4 ranks, gradients too, with one all-reduce of {PAYLOAD} bytes each way."


@exercise(
    attention_part,
    "Heads do not look at each other. Rank r takes part r of the outputs of q, k and v: whole heads.",
    "After linear(…): .unflatten(-1, (-1, attention.head)).transpose(1, 2), then "
    "scaled_dot_product_attention(q, k, v, is_causal=True), then .transpose(1, 2).flatten(2).",
    "What comes out is this rank's part of the inputs of `out`: split out.weight along dim 1, add_up, then the bias.",
)
def _attention_part(answer: Callable[..., Tensor]) -> str:
    for ranks in (2, 4):
        _judge(answer, "attention", ranks)
    return f"Equal to the whole attention on 2 and 4 ranks, with one all-reduce of {PAYLOAD} bytes each way."
