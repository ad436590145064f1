"""The exercise on a mixture of experts: tokens go to several ranks, through the experts there, and come back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from ..errors import CourseError, RankError
from ..machine import pick
from ..ranks.traffic import Traffic
from .old import exercise, wrong
from .on_ranks import everywhere, home, on_ranks, same
from .words import in_words

SECONDS = 12.0  # a deadlock ends here, in words
WIDTH = 64


def to_experts(x, chosen, weights, expert):
    k, ranks = chosen.shape[1], dist.get_world_size()
    order = chosen.flatten().argsort(stable=True)  # the copies of tokens: for rank 0 first, then for rank 1, …
    counts = chosen.flatten().bincount(minlength=ranks)
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    out, back = counts.tolist(), coming.tolist()
    arrived = all_to_all_single_autograd(x[order // k], back, out, dist.group.WORLD)  # copy i is of token i // k
    results = all_to_all_single_autograd(expert(arrived), out, back, dist.group.WORLD)
    return (results[order.argsort()].unflatten(0, (-1, k)) * weights.unsqueeze(-1)).sum(1)


def _routes(ranks: int) -> dict[str, list[Tensor]]:
    """By case, for each rank: the experts that its tokens choose, (T, k)."""
    draw = torch.Generator().manual_seed(ranks)

    def choose(tokens: int, k: int, among: int) -> Tensor:
        return torch.rand(tokens, among, generator=draw).argsort(1)[:, :k].contiguous()

    return {
        "one expert a token": [choose(6 + rank, 1, ranks) for rank in range(ranks)],
        "two experts a token": [choose(8 - rank, 2, ranks) for rank in range(ranks)],
        "an expert that nobody wants": [choose(7, 1, ranks - 1) for _ in range(ranks)],
        "a rank without tokens": [choose(0 if rank == 1 else 5, 2, ranks) for rank in range(ranks)],
    }


class _Expert(nn.Module):
    """A rank's expert, the same wherever it is made; it counts the tokens that come."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(100 + rank)
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=draw).to(pick()) / 4)
        self.tokens = 0

    def forward(self, x: Tensor) -> Tensor:
        self.tokens += len(x)
        return torch.tanh(x @ self.matrix) + x


def _inputs(routes: list[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(x, chosen, weights) of every rank, leaves for autograd."""
    draw, here, found = torch.Generator().manual_seed(7), pick(), []
    for chosen in routes:
        x, weights = torch.randn(len(chosen), WIDTH, generator=draw), torch.rand(chosen.shape, generator=draw)
        found.append((x.to(here).requires_grad_(), chosen.to(here), weights.to(here).requires_grad_()))
    return found


def _whole(x: Tensor, chosen: Tensor, weights: Tensor, experts: list[_Expert]) -> Tensor:
    """What every token is to get, with all experts on one rank."""
    results = torch.stack([expert(x) for expert in experts])  # (experts, T, WIDTH)
    rows = torch.arange(len(x), device=x.device)[:, None]
    return (results[chosen, rows] * weights.unsqueeze(-1)).sum(1)


def _run(answer: Callable[..., Any], cases: dict[str, list[Tensor]]) -> dict[str, dict[str, Any]]:
    """On a rank, for each case: output, gradients, tokens and bytes, expected and got."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = {}
    for name, routes in cases.items():
        (x, chosen, weights), expert = _inputs(routes)[rank], _Expert(rank)
        with Traffic() as traffic:
            y = answer(x, chosen, weights, expert)
        result = {"got": y, "requires_grad": getattr(y, "requires_grad", False), "came": expert.tokens,
                  "wanted": sum(int((r == rank).sum()) for r in routes), "copies": chosen.numel(),
                  "bytes": traffic.bytes.total()}
        inputs, experts = _inputs(routes), [_Expert(r) for r in range(ranks)]
        right = [_whole(*mine, experts) for mine in inputs]
        result["expected"] = right[rank]
        fits = isinstance(y, Tensor) and y.shape == right[rank].shape
        result["got"] = y = y + 0 if fits else y  # a tensor that still arrives is there then
        if fits:
            result["plain"] = _others(inputs[rank], experts, rank)
        ready = torch.tensor(float(fits and y.requires_grad), device=pick())
        dist.all_reduce(ready, op=dist.ReduceOp.MIN)  # backward needs every rank
        if ready:
            y.square().sum().backward()
            sum(each.square().sum() for each in right).backward()
            of_experts = experts[rank].matrix.grad, expert.matrix.grad
            result["grads"] = {"x": (inputs[rank][0].grad, x.grad), "weights": (inputs[rank][2].grad, weights.grad),
                               "the expert's matrix": of_experts}
        found[name] = home(result)
    return found


def _others(mine: tuple[Tensor, Tensor, Tensor], experts: list[_Expert], rank: int) -> dict[str, Tensor]:
    """What plausible mistakes give, by the sentence that names them."""
    x, chosen, weights = (t.detach() for t in mine)
    with torch.no_grad():
        each = chosen.view(-1, 1)
        copies = _whole(x.repeat_interleave(chosen.shape[1], 0), each, torch.ones_like(each), experts)
        by_rank = copies[chosen.flatten().argsort(stable=True)].view(*chosen.shape, WIDTH)
        return {
            "The results came in the order of the ranks; they are to be in the order of the tokens again.":
                (by_rank * weights.unsqueeze(-1)).sum(1),
            "The weights are missing: a result counts times weights[i, j].":
                _whole(x, chosen, torch.ones_like(weights), experts),
            "Only the first expert of each token counts; the others' results are to be added.":
                _whole(x, chosen[:, :1], weights[:, :1], experts),
            "Every token went through this rank's own expert; it is to go to those of chosen[i].":
                _whole(x, torch.full_like(chosen, rank), weights, experts),
        }


@exercise(
    to_experts,
    "Make a list of copies first: token i is in it k times, once for each expert. `chosen.flatten()` says where each "
    "copy goes, and copy c is of token `c // k`.",
    "Sorted by rank, the copies for a rank lie together: `order = chosen.flatten().argsort(stable=True)`. Their counts "
    "(`bincount(minlength=ranks)`) go first, with an all-to-all of their own; both counts are the split sizes.",
    "Back it is the same all-to-all with the two lists of sizes exchanged. `results[order.argsort()]` undoes the "
    "sorting; then `unflatten(0, (-1, k))` and the weighted sum over dim 1.",
)
def _to_experts(answer: Callable[..., Any]) -> str:
    for ranks in (2, 3, 4):
        cases = _routes(ranks)
        found = _found(answer, cases, ranks)
        for case in cases:
            results = [by_case[case] for by_case in found]
            everywhere([result["got"] for result in results], "the results of its tokens")
            for rank, result in enumerate(results):
                _output(f"{ranks} ranks, {case}: what rank {rank} returned", result)
            for rank, result in enumerate(results):
                _cost(f"{ranks} ranks, {case}: rank {rank}", result)
            for rank, result in enumerate(results):
                _gradients(f"{ranks} ranks, {case}: on rank {rank}", result)
    return "Right on 2, 3 and 4 ranks, gradients included; each token travels only to its experts and back."


def _found(answer: Callable[..., Any], cases: dict[str, list[Tensor]], ranks: int) -> list[dict[str, Any]]:
    try:
        return on_ranks(_run, answer, cases, ranks=ranks, seconds=SECONDS)
    except RankError as error:  # the all-reduce with no line is the one in _run
        text = re.sub(r"(ranks? [\d, ]+) waits? in all_reduce here: \(no line known\)",
                      r"\1 had returned: a collective needs every rank.", in_words(error))
        raise CourseError(text) from None


def _output(what: str, result: dict[str, Any]) -> None:
    expected, got = result["expected"], result["got"]
    if isinstance(got, Tensor) and got.shape == expected.shape and not torch.allclose(expected, got, atol=1e-4):
        for words, value in result["plain"].items():
            if torch.allclose(value, got, atol=1e-4):
                wrong(f"{what}: not what was expected. {words}", expected=expected[0, :4], got=got[0, :4])
    same(what, expected, got, tol=1e-4)


def _cost(where: str, result: dict[str, Any]) -> None:
    if result["came"] != result["wanted"]:
        wrong(f"{where}'s expert is to compute the tokens that chose it, once each.",
              expected=f"{result['wanted']} tokens", got=f"{result['came']} tokens")
    token, counts = 4 * WIDTH, 400
    most = (result["copies"] + result["wanted"]) * token + counts
    if result["bytes"] > most:
        wrong(f"{where} sends more than its tokens, their results and the counts.",
              expected=f"at most {most:,} bytes", got=f"{result['bytes']:,} bytes")


def _gradients(where: str, result: dict[str, Any]) -> None:
    if not result["requires_grad"]:
        wrong(f"{where} the output is right, but no gradient can flow back: dist.all_to_all_single is unknown to "
              "autograd, all_to_all_single_autograd is not.", expected="an output with requires_grad",
              got="requires_grad=False")
    for name, (expected, got) in result.get("grads", {}).items():
        if got is None:
            wrong(f"{where} no gradient comes to {name}. Is it cut off on the way, by an all-to-all that autograd does "
                  "not know or by detach()?", expected=f"a gradient of {name}", got="None")
        if name.startswith("the expert") and not torch.allclose(expected, got, atol=1e-3):
            wrong(f"{where} the gradient of the expert's matrix is wrong: it is to come from all tokens that came "
                  "here, their ranks' losses included.", expected=expected[0, :4], got=got[0, :4])
        same(f"{where} the gradient of {name}", expected, got, tol=1e-3)
