"""The exercises of notebook 09: an MLP and attention over several ranks with the least communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from ..lessons.models import MLP, Attention
from ..lessons.tensor_parallel import add_up, fan_out
from ..ranks.launch import launch
from ..ranks.traffic import Traffic
from .exercise import exercise, expect, wrong

SECONDS = 30.0
WIDTH, HEADS, ROWS, LENGTH = 24, 4, 2, 5
PAYLOAD = ROWS * LENGTH * WIDTH * 4  # bytes of one activation, float32


def mlp_part(x: Tensor, up: nn.Linear, down: nn.Linear) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    columns = up.weight.chunk(ranks)[rank], up.bias.chunk(ranks)[rank]  # nn.Linear keeps (outputs, inputs)
    hidden = gelu(linear(fan_out(x), *columns))  # (…, hidden/ranks) of (…, hidden)
    return add_up(linear(hidden, down.weight.chunk(ranks, dim=1)[rank])) + down.bias


def attention_part(x: Tensor, attention: Attention) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def my_heads(layer: nn.Linear) -> Tensor:  # (N, heads/ranks, T, head) of (N, heads, T, head)
        mine = linear(x, layer.weight.chunk(ranks)[rank], layer.bias.chunk(ranks)[rank])
        return mine.unflatten(-1, (-1, attention.head)).transpose(1, 2)

    x = fan_out(x)
    mixed = scaled_dot_product_attention(*map(my_heads, (attention.q, attention.k, attention.v)), is_causal=True)
    out = attention.out.weight.chunk(ranks, dim=1)[rank]
    return add_up(linear(mixed.transpose(1, 2).flatten(2), out)) + attention.out.bias


def _filled(module: nn.Module) -> nn.Module:
    """The same random weights on every rank, biases included."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    return module


def _run(answer: Callable[..., Tensor], kind: str) -> dict[str, Any]:
    """One forward and backward of the answer and of the whole layer on this rank."""
    mine, whole = (_filled(MLP(WIDTH) if kind == "mlp" else Attention(WIDTH, HEADS)) for _ in range(2))
    arguments = (mine.up, mine.down) if kind == "mlp" else (mine,)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(ROWS, LENGTH, WIDTH, generator=generator, requires_grad=True)
    same = x.detach().clone().requires_grad_()
    with Traffic() as forward:
        y = answer(x, *arguments)
    if not isinstance(y, Tensor):
        return {"output": (None, y)}
    expected = whole(same)
    result = {"output": (expected.detach(), y.detach())}
    if y.shape != expected.shape or not y.requires_grad:
        return result | {"grad": y.requires_grad}
    direction = torch.randn(y.shape, generator=generator)
    with Traffic() as backward:
        y.backward(direction)
    expected.backward(direction)
    pairs = zip(whole.named_parameters(), mine.parameters(), strict=True)
    grads = {name: (p.grad, q.grad) for (name, p), q in pairs}
    return result | {"grad": True, "x": (same.grad, x.grad), "grads": grads, "forward": forward, "backward": backward}


def _judge(answer: Callable[..., Tensor], kind: str, ranks: int, splits: dict[str, int]) -> None:
    call = "mlp_part(x, up, down)" if kind == "mlp" else "attention_part(x, attention)"
    results = launch(_run, answer, kind, ranks=ranks, device="cpu", time_limit=SECONDS, show=False).results
    for rank, result in enumerate(results):
        _output(f"{call} on rank {rank} of {ranks}", result)
    for rank, result in enumerate(results):
        _parameters(rank, ranks, result["grads"], splits)
        _x(f"The gradient of x on rank {rank} of {ranks}", *result["x"])
    for name in ("forward", "backward"):
        _traffic(name, results[0][name])


def _output(what: str, result: dict[str, Any]) -> None:
    expected, got = result["output"]
    if expected is None:
        expect(what, torch.zeros(ROWS, LENGTH, WIDTH), got)
    if got.shape == expected.shape and not torch.allclose(expected, got, atol=1e-5):
        off = (got - expected).flatten(0, -2)
        if torch.allclose(off, off[0].expand_as(off), atol=1e-5):
            wrong(f"{what} is off by the same vector in every row: the last bias is to be added once, after the sum.",
                  expected=expected, got=got)  # fmt: skip
    expect(what, expected, got, tol=1e-5)
    if not result["grad"]:
        wrong(f"{what} is right, but no gradient can flow back: dist.all_reduce is unknown to autograd.",
              expected="an output with requires_grad: add_up(…)", got="requires_grad=False")  # fmt: skip


def _parameters(rank: int, ranks: int, grads: dict[str, tuple[Tensor, Tensor | None]], splits: dict[str, int]) -> None:
    """A split parameter has the whole's gradient in this rank's part, and none elsewhere."""
    for name, (expected, got) in grads.items():
        what = f"The gradient of {name} on rank {rank} of {ranks}"
        if got is None:
            wrong(f"{what} is missing: it was not used.", expected=expected, got="None")
        if name in splits:
            part = torch.zeros_like(expected)
            part.chunk(ranks, splits[name])[rank].copy_(expected.chunk(ranks, splits[name])[rank])
            if torch.allclose(got, expected, atol=1e-5) and not torch.allclose(part, expected, atol=1e-5):
                wrong(f"This rank used all of {name}. Rank {rank} is to use part {rank} of {ranks} "
                      f"along dim {splits[name]} only.", expected=f"{part.count_nonzero()} numbers with a gradient",
                      got=f"{got.count_nonzero()}")  # fmt: skip
            expected = part
        expect(what, expected, got, tol=1e-5)


def _x(what: str, expected: Tensor, got: Tensor | None) -> None:
    if got is None:
        wrong(f"{what} is missing.", expected=expected, got="None")
    if not torch.allclose(expected, got, atol=1e-5):
        wrong(f"{what} is only this rank's part of it, or a multiple. Every rank's part of the layer uses x: backward, "
              "the parts are to be added up, once.", expected=expected, got=got)  # fmt: skip


def _traffic(name: str, traffic: Traffic) -> None:
    if traffic.calls != {"all-reduce": 1} or traffic.bytes["all-reduce"] != PAYLOAD:
        wrong(f"The values are right. The {name} pass can do with less communication.",
              expected=f"1 all-reduce of {PAYLOAD} bytes",
              got=", ".join(f"{n} {kind} of {traffic.bytes[kind]} bytes" for kind, n in traffic.calls.items())
              or "nothing sent")  # fmt: skip


@exercise(
    mlp_part,
    "Split up by its outputs and down by its inputs: gelu works on each number alone, so nothing need be sent between.",
    "nn.Linear keeps (outputs, inputs): up.weight.chunk(ranks)[rank] and up.bias.chunk(ranks)[rank], but "
    "down.weight.chunk(ranks, dim=1)[rank].",
    "add_up(linear(gelu(linear(fan_out(x), …)), …)) + down.bias: the last bias once, after the sum.",
)
def _mlp_part(answer: Callable[..., Tensor]) -> str:
    for ranks in (2, 4):
        _judge(answer, "mlp", ranks, {"up.weight": 0, "up.bias": 0, "down.weight": 1})
    return f"Equal to the whole MLP on 2 and 4 ranks, gradients too, with one all-reduce of {PAYLOAD} bytes each way."


@exercise(
    attention_part,
    "Heads do not look at each other. Rank r takes part r of the outputs of q, k and v: whole heads.",
    "After linear(…): .unflatten(-1, (-1, attention.head)).transpose(1, 2), then "
    "scaled_dot_product_attention(q, k, v, is_causal=True), then .transpose(1, 2).flatten(2).",
    "What comes out is this rank's part of the inputs of `out`: split out.weight along dim 1, add_up, then the bias.",
)
def _attention_part(answer: Callable[..., Tensor]) -> str:
    splits = {f"{name}.{kind}": 0 for name in "qkv" for kind in ("weight", "bias")} | {"out.weight": 1}
    for ranks in (2, 4):
        _judge(answer, "attention", ranks, splits)
    return f"Equal to the whole attention on 2 and 4 ranks, with one all-reduce of {PAYLOAD} bytes each way."
