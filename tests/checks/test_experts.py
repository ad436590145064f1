"""Tokens to experts: published and other right answers pass, plausible wrong ones fail in words."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd

from course_utils import check
from tests.checks.judging import judge, solved


def test_solution():
    solved("to_experts", check.to_experts.published)


def exchanged(counts):
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    return counts.tolist(), coming.tolist()


def route(x, chosen, expert):
    """One expert a token, without weights."""
    order = chosen.argsort(stable=True)
    out, back = exchanged(chosen.bincount(minlength=dist.get_world_size()))
    arrived = all_to_all_single_autograd(x[order], back, out, dist.group.WORLD)
    return all_to_all_single_autograd(expert(arrived), out, back, dist.group.WORLD)[order.argsort()]


def choice_by_choice(x, chosen, weights, expert):
    return sum(weights[:, j, None] * route(x, chosen[:, j], expert) for j in range(chosen.shape[1]))


def index_add(x, chosen, weights, expert):
    ranks, k = dist.get_world_size(), chosen.shape[1]
    order = chosen.flatten().argsort()
    tokens = order // k
    out, back = exchanged(chosen.flatten().bincount(minlength=ranks))
    arrived = all_to_all_single_autograd(x[tokens], back, out, dist.group.WORLD)
    results = all_to_all_single_autograd(expert(arrived), out, back, dist.group.WORLD)
    return torch.zeros_like(x).index_add(0, tokens, results * weights.flatten()[order, None])


def by_lists(x, chosen, weights, expert):
    ranks = dist.get_world_size()
    places = [(chosen == r).nonzero() for r in range(ranks)]
    counts = torch.tensor([len(p) for p in places], device=x.device)
    out, back = exchanged(counts)
    token, j = torch.cat(places).unbind(1)
    arrived = all_to_all_single_autograd(x[token], back, out, dist.group.WORLD)
    results = all_to_all_single_autograd(expert(arrived), out, back, dist.group.WORLD)
    grid = torch.zeros(*chosen.shape, x.shape[1], device=x.device).index_put((token, j), results)
    return torch.einsum("tk,tkd->td", weights, grid)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out, back):
        ctx.sizes = out, back
        y = x.new_empty(sum(back), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), back, out)
        return y

    @staticmethod
    def backward(ctx, gradient):
        out, back = ctx.sizes
        x = gradient.new_empty(sum(out), gradient.shape[1])
        dist.all_to_all_single(x, gradient.contiguous(), out, back)
        return x, None, None


def own_function(x, chosen, weights, expert):
    tokens, k = chosen.shape
    order = chosen.reshape(-1).sort(stable=True).indices
    out, back = exchanged(torch.bincount(chosen.reshape(-1), minlength=dist.get_world_size()))
    results = Exchange.apply(expert(Exchange.apply(x.repeat_interleave(k, 0)[order], out, back)), back, out)
    undone = torch.empty_like(order)
    undone[order] = torch.arange(len(order), device=x.device)
    return (weights.unsqueeze(-1) * results[undone].view(tokens, k, x.shape[1])).sum(dim=1)


def counts_gathered(x, chosen, weights, expert):
    ranks, k = dist.get_world_size(), chosen.shape[1]
    counts = chosen.flatten().bincount(minlength=ranks)
    dist.all_gather(table := [torch.empty_like(counts) for _ in range(ranks)], counts)
    out, back = counts.tolist(), torch.stack(table)[:, dist.get_rank()].tolist()
    order = chosen.flatten().argsort(stable=True)
    arrived = all_to_all_single(x[order // k], back, out, dist.group.WORLD)
    results = all_to_all_single(expert(arrived), out, back, dist.group.WORLD)[order.argsort()]
    return (results * weights.reshape(-1, 1)).unflatten(0, (len(x), k)).sum(1)


RIGHT = [choice_by_choice, index_add, by_lists, own_function, counts_gathered]


@pytest.mark.parametrize("answer", RIGHT)
def test_right_in_other_ways(answer):
    solved("to_experts", answer)


def general(x, chosen, weights, expert, *, undo=True, weigh=True, differentiable=True, cut=False):
    """The published solution, with one thing wrong."""
    k = chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    out, back = exchanged(chosen.flatten().bincount(minlength=dist.get_world_size()))
    given = x.detach() if cut else x
    if differentiable:
        arrived = all_to_all_single_autograd(given[order // k], back, out, dist.group.WORLD)
        results = all_to_all_single_autograd(expert(arrived), out, back, dist.group.WORLD)
    else:
        arrived = x.new_empty(sum(back), x.shape[1])
        dist.all_to_all_single(arrived, given[order // k].detach(), back, out)
        results = x.new_empty(sum(out), x.shape[1])
        dist.all_to_all_single(results, expert(arrived).detach(), out, back)
    results = results[order.argsort()] if undo else results
    results = results.unflatten(0, (len(x), k))
    return (results * weights.unsqueeze(-1)).sum(1) if weigh else results.sum(1)


def order_kept(x, chosen, weights, expert):
    return general(x, chosen, weights, expert, undo=False)


def no_weights(x, chosen, weights, expert):
    return general(x, chosen, weights, expert, weigh=False)


def not_differentiable(x, chosen, weights, expert):
    return general(x, chosen, weights, expert, differentiable=False)


def no_gradient_at_all(x, chosen, weights, expert):
    return general(x, chosen, weights.detach(), expert, differentiable=False)


def x_cut_off(x, chosen, weights, expert):
    return general(x, chosen, weights, expert, cut=True)


def weights_cut_off(x, chosen, weights, expert):
    return general(x, chosen, weights.detach(), expert)


def first_choice_only(x, chosen, weights, expert):
    return general(x, chosen[:, :1].contiguous(), weights[:, :1], expert)


def at_home(x, chosen, weights, expert):
    return expert(x) * weights.sum(1, keepdim=True)


def everybody_computes_all(x, chosen, weights, expert):
    """Every rank gets every token: right, and far too much."""
    ranks, k = dist.get_world_size(), chosen.shape[1]
    mine = torch.tensor([len(x)], device=x.device)
    dist.all_gather(sizes := [torch.empty_like(mine) for _ in range(ranks)], mine)
    sizes = torch.cat(sizes)
    all_x = all_to_all_single_autograd(x.repeat(ranks, 1), sizes.tolist(), [len(x)] * ranks, dist.group.WORLD)
    back = all_to_all_single_autograd(expert(all_x), [len(x)] * ranks, sizes.tolist(), dist.group.WORLD)
    by_expert = back.unflatten(0, (ranks, len(x)))
    rows = torch.arange(len(x), device=x.device)[:, None].expand(len(x), k)
    return (by_expert[chosen, rows] * weights.unsqueeze(-1)).sum(1)


def padded(x, chosen, weights, expert):
    """All messages as large as the largest: zeros travel, too."""
    ranks, k = dist.get_world_size(), chosen.shape[1]
    out, back = exchanged(chosen.flatten().bincount(minlength=ranks))
    room = torch.tensor(max([*out, *back]), device=x.device)
    dist.all_reduce(room, op=dist.ReduceOp.MAX)
    room, order = int(room), chosen.flatten().argsort(stable=True)
    copies = x[order // k].split(out)
    box = torch.cat([torch.cat([c, c.new_zeros(room - len(c), x.shape[1])]) for c in copies])
    arrived = all_to_all_single_autograd(box, None, None, dist.group.WORLD).split(room)
    done = expert(torch.cat([part[:n] for part, n in zip(arrived, back, strict=True)])).split(back)
    box = torch.cat([torch.cat([c, c.new_zeros(room - len(c), x.shape[1])]) for c in done])
    returned = all_to_all_single_autograd(box, None, None, dist.group.WORLD).split(room)
    results = torch.cat([part[:n] for part, n in zip(returned, out, strict=True)])
    return (results[order.argsort()].unflatten(0, (len(x), k)) * weights.unsqueeze(-1)).sum(1)


def sizes_not_exchanged_back(x, chosen, weights, expert):
    k = chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    out, back = exchanged(chosen.flatten().bincount(minlength=dist.get_world_size()))
    arrived = all_to_all_single_autograd(x[order // k], back, out, dist.group.WORLD)
    results = all_to_all_single_autograd(expert(arrived), back, out, dist.group.WORLD)
    return (results[order.argsort()].unflatten(0, (-1, k)) * weights.unsqueeze(-1)).sum(1)


def returns_early(x, chosen, weights, expert):
    return x * 0 if len(x) == 0 else general(x, chosen, weights, expert)


def nothing_on_rank_0(x, chosen, weights, expert):
    y = general(x, chosen, weights, expert)
    return y if dist.get_rank() else None


WRONG = [
    (order_kept, "they are to be in the order of the tokens again"),
    (no_weights, "The weights are missing"),
    (not_differentiable, "no gradient comes to x"),
    (no_gradient_at_all, "dist.all_to_all_single is unknown to autograd"),
    (x_cut_off, "no gradient comes to x"),
    (weights_cut_off, "no gradient comes to weights"),
    (first_choice_only, "Only the first expert of each token counts"),
    (at_home, "Every token went through this rank's own expert"),
    (everybody_computes_all, "is to compute the tokens that chose it"),
    (padded, "sends more than its tokens, their results and the counts"),
    (sizes_not_exchanged_back, "raised"),
    (returns_early, "a collective needs every rank"),
    (nothing_on_rank_0, "Rank 0 returned nothing"),
]


@pytest.mark.parametrize(("answer", "words"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_wrong(answer, words):
    judge("to_experts", answer, words)


def test_a_stub_is_not_yet():
    def to_experts(x, chosen, weights, expert):
        """Not written."""

    assert check.to_experts(to_experts).state == "not yet"
