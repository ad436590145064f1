"""A mixture of experts on one device, and one over ranks held against it."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..machine import pick
from ..ranks.traffic import Traffic
from .sequences import apart

WIDTH = 64


def layer(experts: int) -> tuple[nn.Linear, nn.ModuleList]:
    """(router, experts) of width WIDTH, the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        router = nn.Linear(WIDTH, experts, bias=False)
        mlps = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
                for _ in range(experts)]
    return router.to(pick()), nn.ModuleList(mlps).to(pick())


def whole_layer(x: Tensor, router: nn.Linear, experts: nn.ModuleList) -> Tensor:
    """Each token (T, WIDTH) through its most likely expert, times that chance; every expert sees all tokens here."""
    chance, chosen = router(x).softmax(-1).max(-1)
    return chance[:, None] * sum((chosen == i)[:, None] * expert(x) for i, expert in enumerate(experts))


def against_whole(moe: Callable[[Tensor, nn.Module, nn.Module], Tensor], tokens: int) -> tuple[float, Traffic]:
    """On a rank: `moe(x, router, expert)` of its tokens and its expert beside the whole layer, both ways.

    (the largest difference of output and gradients, as a part of the largest number of each; forward's traffic)
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(1)).to(pick()).requires_grad_()
    mine = x.detach().chunk(ranks)[rank].clone().requires_grad_()
    (router, experts), (whole_router, whole_experts) = layer(ranks), layer(ranks)
    with Traffic() as traffic:
        y = moe(mine, router, experts[rank])
    y.square().sum().backward()
    dist.all_reduce(router.weight.grad)  # every rank has the router, and only one has this expert
    right = whole_layer(x, whole_router, whole_experts)
    right.square().sum().backward()
    pairs = [(y, right.chunk(ranks)[rank]), (mine.grad, x.grad.chunk(ranks)[rank]),
             (router.weight.grad, whole_router.weight.grad)]
    ours, theirs = experts[rank].parameters(), whole_experts[rank].parameters()
    pairs += [(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True)]
    return max(apart(a, b) for a, b in pairs), traffic
