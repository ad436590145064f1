"""One long sequence, and any attention over ranks checked against torch's on the whole of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

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

    worst: float  # largest difference of output and gradients, by the largest number of each
    forward: int  # bytes sent
    backward: int
    saved: int  # bytes that autograd saves for backward


def sequence(n: int, heads: int, shared: int, device: torch.device) -> list[Tensor]:
    """Queries (heads, shared, n, HEAD), keys and values (heads, 1, n, HEAD), alike on all ranks."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(heads, queries, n, HEAD) for queries in (shared, 1, 1)]
    return [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in shapes]


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's own causal attention."""
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] > k.shape[1])


def against_whole(
    attention: Callable[..., Tensor], positions: list[Tensor], heads: int, shared: int = 1
) -> Found:
    """Run `attention(q, k, v, positions)` on this rank's tokens, and `fused` on all of them.

    This rank's tokens are those at `positions[rank]`.
    """
    at = positions[dist.get_rank()].to(pick())
    whole = sequence(sum(map(len, positions)), heads, shared, pick())
    mine = [t.detach()[:, :, at].contiguous().requires_grad_() for t in whole]
    with SavedTensors() as saved, Traffic() as forward:
        y = attention(*mine, positions)

    right = fused(*whole)
    direction = whole[0].detach()
    with Traffic() as backward:
        y.backward(direction[:, :, at])
    right.backward(direction)

    pairs: list[tuple[Any, Any]] = [(y, right)]
    for part, all_of_it in zip(mine, whole, strict=True):
        pairs.append((part.grad, all_of_it.grad))
    worst = 0.0
    for a, b in pairs:
        off = (a - b[:, :, at]).abs().max() / b.abs().max().clamp(min=1)
        worst = max(worst, off.item())
    return Found(worst, forward.bytes_sent, backward.bytes_sent, saved.peak)
