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

HEAD = 8  # the width of one


class Found(NamedTuple):
    """What `against_whole` found on a rank."""

    worst: float  # the largest difference of output and gradients, as a part of the largest number of each
    forward: int  # bytes sent
    backward: int
    saved: int  # bytes that autograd saves for backward


def sequence(n: int, heads: int, shared: int, device: torch.device) -> list[Tensor]:
    """Queries (heads, shared, n, HEAD), keys and values (heads, 1, n, HEAD) of n tokens, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(heads, queries, n, HEAD) for queries in (shared, 1, 1)]
    return [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in shapes]


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's own causal attention."""
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] > k.shape[1])


def against_whole(
    attention: Callable[..., Tensor], positions: list[Tensor], heads: int, shared: int = 1
) -> Found:
    """On a rank: `attention(q, k, v, positions)` of its tokens, at `positions[rank]`, beside `fused` of the whole."""
    at, whole = (
        positions[dist.get_rank()].to(pick()),
        sequence(sum(map(len, positions)), heads, shared, pick()),
    )
    mine = [t.detach()[:, :, at].contiguous().requires_grad_() for t in whole]
    with SavedTensors() as saved, Traffic() as forward:
        y = attention(*mine, positions)
    right, direction = fused(*whole), whole[0].detach()
    with Traffic() as backward:
        y.backward(direction[:, :, at])
    right.backward(direction)
    pairs = [(y, right), *((a.grad, b.grad) for a, b in zip(mine, whole, strict=True))]
    worst = max(
        ((a - b[:, :, at]).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs
    )
    return Found(worst, forward.bytes_sent, backward.bytes_sent, saved.peak)
