"""Exercises of notebook 13: two outputs of attention become one, tokens go to several experts."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from ..machine import pick
from ..ranks.traffic import Traffic
from .compare import AtMost, kind
from .exercise import exercise, patched
from .instruments import rows_into

FLOAT, DOUBLE, SHORT = torch.float32, torch.float64, torch.bfloat16
# words: (…, n, d), a query's largest mean score in a part, some queries see nothing, types of
# out_a, lse_a, out_b, lse_b, tol
PARTS = {
    "scores around 0": ((2, 3, 4, 6), 0, False, 4 * [FLOAT], 1e-5),
    "two dimensions, one query, float64": ((1, 5), 0, False, 4 * [DOUBLE], 1e-5),
    "five dimensions, scores from -1000 to 1000": (
        (2, 1, 3, 5, 4),
        1000,
        False,
        4 * [FLOAT],
        1e-3,
    ),
    "nothing seen in a part, or in both, by some queries": ((2, 7, 3), 0, True, 4 * [FLOAT], 1e-5),
    "out_a in bfloat16, lse_a and out_b in float32, lse_b in float64": (
        (2, 3, 4),
        0,
        False,
        [SHORT, FLOAT, FLOAT, DOUBLE],
        0.03,
    ),
}


def attention(s: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (…, n, keys), values (…, keys, d) -> out (…, n, d), lse (…, n)."""
    return s.softmax(-1).nan_to_num() @ v, s.logsumexp(-1)


def two_parts(
    shape: tuple, largest: float, unseen: bool
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Scores and values of parts with three and five keys, in float64."""
    torch.manual_seed(30)
    parts = []
    for keys, every in ((3, 2), (5, 3)):
        s = torch.randn(*shape[:-1], keys, dtype=torch.float64)
        s += largest * torch.randint(-1, 2, (*shape[:-1], 1))
        if unseen:
            s[..., ::every, :] = -torch.inf
        v = torch.randn(*shape[:-2], keys, shape[-1], dtype=torch.float64)
        parts.append((s, v))
    return parts


def merge_outputs(out_a, lse_a, out_b, lse_b):
    """out (…, n, d), lse (…, n) of attention over two parts of the keys -> (out, lse) over both."""
    lse = torch.stack([lse_a, lse_b])
    share_a, share_b = lse.softmax(0).nan_to_num().unsqueeze(-1)  # nan where both are -inf
    out = out_a * share_a + out_b * share_b
    return out.to(out_a.dtype), torch.logaddexp(lse_a, lse_b).to(lse_a.dtype)


nan_stays = patched(merge_outputs, "torch.Tensor.nan_to_num", new=torch.Tensor.clone)


@exercise(
    merge_outputs,
    mistakes={
        "(-inf) - (-inf) is nan, and so is 0 / 0; a query that saw nothing has the output "
        "0": nan_stays,
    },
)
def _(answer):
    for words, (*case, types, tol) in PARTS.items():
        parts = itertools.chain(*(attention(*part) for part in two_parts(*case)))
        given = [tensor.to(dtype) for tensor, dtype in zip(parts, types, strict=True)]
        found = answer(*given)
        pair = isinstance(found, (tuple, list)) and len(found) == 2
        yield f"{words}: what comes back", "(out, lse)" if pair else kind(found)
        yield f"{words}: out", found[0], tol
        yield f"{words}: lse", found[1], tol
        yield f"{words}: what was given, afterwards", given
    yield "", "With two to five dimensions, scores of ±1,000, and queries that see nothing."


WIDTH, COUNTS = 64, 400  # numbers of a token; bytes that the counts of tokens may take


def expert_of(rank: int) -> nn.Sequential:
    """(N, WIDTH) -> (N, WIDTH), the same wherever it is made."""
    torch.manual_seed(100 + rank)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).to(pick())


def routes(ranks: int) -> dict[str, list[torch.Tensor]]:
    """By case, for each rank: the experts that its tokens choose, (T, k)."""
    torch.manual_seed(ranks)

    def choose(tokens: int, k: int, among: int) -> torch.Tensor:
        return torch.rand(tokens, among).argsort(1)[:, :k].contiguous()

    return {
        "an expert that nobody wants": [choose(7, 1, ranks - 1) for _ in range(ranks)],
        "all experts for each token": [choose(8 - rank, ranks, ranks) for rank in range(ranks)],
        "one token, or none": [choose(1 - rank % 2, 2, ranks) for rank in range(ranks)],
    }


def tokens_of(rank: int, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, chosen and weights of a rank; x and weights are leaves of autograd."""
    torch.manual_seed(7 + rank)
    x = torch.randn(len(chosen), WIDTH)
    weights = torch.rand(chosen.shape)
    here = pick()
    return x.to(here).requires_grad_(), chosen.to(here), weights.to(here).requires_grad_()


def to_experts(x, chosen, weights, expert):
    """x (T, D), chosen and weights (T, k) -> (T, D).

    Row i is the sum over j of weights[i, j] * expert chosen[i, j] of x[i].
    """
    k, ranks = chosen.shape[1], dist.get_world_size()
    # the copies of tokens: for rank 0 first, then for rank 1, …
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=ranks)
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    out, back = counts.tolist(), coming.tolist()
    # copy i is of token i // k
    arrived = all_to_all_single_autograd(x[order // k], back, out, dist.group.WORLD)
    results = all_to_all_single_autograd(expert(arrived), out, back, dist.group.WORLD)
    return (results[order.argsort()].unflatten(0, (-1, k)) * weights.unsqueeze(-1)).sum(1)


def cut_off(x, chosen, weights, expert):
    return to_experts(x.detach(), chosen, weights, expert)


@exercise(
    to_experts,
    ranks=(2, 3, 4),
    mistakes={
        "none comes back to x. It is cut off by `detach`, by `no_grad`, or by "
        "`dist.all_to_all_single`, which autograd does not know; `all_to_all_single_autograd` is "
        "known to it": cut_off,
    },
)
def _(answer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for case, chosen_by in routes(ranks).items():
        x, chosen, weights = tokens_of(rank, chosen_by[rank])
        expert = expert_of(rank)
        came = rows_into(expert)
        with Traffic() as traffic:
            y = answer(x, chosen, weights, expert)
        yield f"{case}: what is returned", y, 1e-4
        yield f"{case}: what was given, afterwards", [x, chosen, weights]
        wanted = sum(int((each == rank).sum()) for each in chosen_by)
        yield f"{case}: tokens that this rank's expert computes", sum(came)
        most = 4 * WIDTH * (chosen.numel() + wanted) + COUNTS
        sent = AtMost(traffic.bytes.total(), most)
        yield f"{case}: bytes sent, of tokens, results and {COUNTS} bytes of counts", sent

        y.square().sum().backward()
        leaves = {"x": x, "weights": weights, "the expert's weight": expert[0].weight}
        for name, leaf in leaves.items():
            # None is no gradient, and so is 0: of an expert that nobody chose.
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            yield f"{case}: the gradient of {name}", grad, 1e-3
    yield (
        "",
        "Right on 2, 3 and 4 ranks, gradients included; each token travels only to its experts and "
        "back.",
    )
