"""One long sequence to attend over, and any attention over ranks held against torch's on the whole of it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..machine import pick
from ..ranks.traffic import Traffic
from .memory import SavedTensors

HEADS, HEAD = 24, 8  # how many, and the width of one; 2, 3, 4, 6, 8 and 12 ranks divide 24


class Found(NamedTuple):
    """What `against_whole` found on a rank."""

    worst: float  # the largest difference of output and gradients, as a part of the largest number of each
    forward: int  # bytes sent
    backward: int
    saved: int  # bytes that autograd saves for backward


def sequence(n: int, device: torch.device) -> list[Tensor]:
    """Queries, keys and values of n tokens, each (1, HEADS, n, HEAD), the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, HEADS, n, HEAD, generator=generator).to(device).requires_grad_() for _ in range(3)]


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's own causal attention."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def against_whole(attention: Callable[..., Tensor], places: list[Tensor]) -> Found:
    """On a rank: `attention(q, k, v, places)`, its tokens at `places[rank]`, beside `fused` of the whole sequence."""
    at, whole = places[dist.get_rank()].to(pick()), sequence(sum(map(len, places)), pick())
    mine = [t.detach()[:, :, at].contiguous().requires_grad_() for t in whole]
    with SavedTensors() as saved, Traffic() as forward:
        y = attention(*mine, places)
    right, direction = fused(*whole), whole[0].detach()
    with Traffic() as backward:
        y.backward(direction[:, :, at])
    right.backward(direction)
    pairs = [(y, right), *((a.grad, b.grad) for a, b in zip(mine, whole, strict=True))]
    worst = max(((a - b[:, :, at]).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs)
    return Found(worst, forward.bytes_sent, backward.bytes_sent, saved.peak)
