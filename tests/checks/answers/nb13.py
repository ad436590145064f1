"""Answers to the exercises of notebook 13."""

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.nn.functional import logsigmoid

from course_utils.checks.nb13_sequences_and_experts import merge_outputs, to_experts

# -- merge -------------------------------------------------------------------------------------------------------------


def as_torch_does(out_a, lse_a, out_b, lse_b):
    away = torch.where(lse_b == -torch.inf, -torch.inf, lse_b - lse_a)
    out = out_a - torch.sigmoid(away).unsqueeze(-1) * (out_a - out_b)
    gone = (lse_a == -torch.inf) & (lse_b == -torch.inf)
    lse = torch.where(gone, -torch.inf, lse_a - logsigmoid(-away))
    return out.to(out_a.dtype), torch.where(lse_a == -torch.inf, lse_b, lse)


def in_float32(out_a, lse_a, out_b, lse_b):
    a, b = lse_a.float(), lse_b.float()
    lse = torch.logaddexp(a, b)
    share = (a - lse).exp().nan_to_num(0.5).unsqueeze(-1)
    return (out_a.float() * share + out_b.float() * (1 - share)).type_as(out_a), lse.type_as(lse_a)


def query_by_query(out_a, lse_a, out_b, lse_b):
    out, lse = torch.zeros_like(out_a), torch.logaddexp(lse_a, lse_b)
    for at in map(tuple, (lse > -torch.inf).nonzero().tolist()):
        out[at] = (lse_a[at] - lse[at]).exp() * out_a[at] + (lse_b[at] - lse[at]).exp() * out_b[at]
    return [out, lse]


def with_shares(share_of, keep_type=True):
    """The right lse, and the output with these shares of part a and b."""

    def merge(out_a, lse_a, out_b, lse_b):
        a, b = (share.unsqueeze(-1) for share in share_of(lse_a, lse_b))
        out = out_a * a + out_b * b
        return out.to(out_a.dtype) if keep_type else out, torch.logaddexp(lse_a, lse_b)

    return merge


def shares(lse_a, lse_b):
    return torch.stack([lse_a, lse_b]).softmax(0).nan_to_num()


def and_lse(lse_of):
    """The right output, and this lse."""
    return lambda out_a, lse_a, out_b, lse_b: (merge_outputs(out_a, lse_a, out_b, lse_b)[0], lse_of(lse_a, lse_b))


def in_place(out_a, lse_a, out_b, lse_b):
    out, lse = merge_outputs(out_a, lse_a, out_b, lse_b)
    return out_a.copy_(out), lse_a.copy_(lse)


def four_dimensions(out_a, lse_a, out_b, lse_b):
    a, b = shares(lse_a, lse_b).to(out_a.dtype)
    out = torch.einsum("bhn,bhnd->bhnd", a, out_a) + torch.einsum("bhn,bhnd->bhnd", b, out_b)
    return out, torch.logaddexp(lse_a, lse_b)


# -- experts -----------------------------------------------------------------------------------------------------------


def exchanged(counts):
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    return counts.tolist(), coming.tolist()


def route(x, chosen, expert):
    """One expert a token, without weights."""
    order = chosen.argsort(stable=True)
    out, back = exchanged(chosen.bincount(minlength=dist.get_world_size()))
    arrived = all_to_all_single_autograd(x[order], back, out, dist.group.WORLD)
    done = expert(arrived) if len(arrived) else arrived
    return all_to_all_single_autograd(done, out, back, dist.group.WORLD)[order.argsort()]


def choice_by_choice(x, chosen, weights, expert):
    return sum(weights[:, j, None] * route(x, chosen[:, j], expert) for j in range(chosen.shape[1]))


def counts_gathered(x, chosen, weights, expert):
    ranks, k = dist.get_world_size(), chosen.shape[1]
    counts = chosen.flatten().bincount(minlength=ranks)
    dist.all_gather(table := [torch.empty_like(counts) for _ in range(ranks)], counts)
    out, back = counts.tolist(), torch.stack(table)[:, dist.get_rank()].tolist()
    order = chosen.flatten().argsort(stable=True)
    arrived = all_to_all_single(x[order // k], back, out, dist.group.WORLD)
    results = all_to_all_single(expert(arrived), out, back, dist.group.WORLD)
    return torch.zeros_like(x).index_add(0, order // k, results * weights.flatten()[order, None])


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out, back):
        ctx.sizes = out, back
        y = x.new_empty(sum(back), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), back, out)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *reversed(ctx.sizes)), None, None


def own_function(x, chosen, weights, expert):
    return general(x, chosen, weights, expert, exchange=Exchange.apply)


def autograds(x, out, back):
    return all_to_all_single_autograd(x, back, out, dist.group.WORLD)


def unknown_to_autograd(x, out, back):
    return Exchange.apply(x.detach(), out, back)


def general(x, chosen, weights, expert, exchange=autograds, undo=True, back_alike=False):
    """The published solution, with one thing another."""
    k = chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    out, back = exchanged(chosen.flatten().bincount(minlength=dist.get_world_size()))
    done = expert(exchange(x[order // k], out, back))
    results = exchange(done, *((out, back) if back_alike else (back, out)))
    results = results[order.argsort()] if undo else results
    return (results.unflatten(0, (len(x), k)) * weights.unsqueeze(-1)).sum(1)


def with_general(**options):
    return lambda x, chosen, weights, expert: general(x, chosen, weights, expert, **options)


def two_choices_at_most(x, chosen, weights, expert):
    return to_experts(x, chosen[:, :2], weights[:, :2], expert)


def at_home(x, chosen, weights, expert):
    return expert(x) * weights.sum(1, keepdim=True)


def everybody_computes_all(x, chosen, weights, expert):
    ranks = dist.get_world_size()
    every = torch.arange(ranks, device=x.device).expand(len(x), ranks).contiguous()
    return to_experts(x, every, weights.new_zeros(every.shape).scatter(1, chosen, weights), expert)


def more_bytes(x, chosen, weights, expert):
    dist.all_gather([torch.empty(8, x.shape[1], device=x.device) for _ in range(dist.get_world_size())],
                    torch.zeros(8, x.shape[1], device=x.device))
    return to_experts(x, chosen, weights, expert)


def chosen_zeroed(x, chosen, weights, expert):
    y = to_experts(x, chosen, weights, expert)
    chosen.zero_()
    return y


def returns_early(x, chosen, weights, expert):
    return x * weights.sum() if len(x) == 0 else to_experts(x, chosen, weights, expert)


def nothing_on_rank_0(x, chosen, weights, expert):
    y = to_experts(x, chosen, weights, expert)
    return y if dist.get_rank() else None


RIGHT = {
    "merge_outputs": [as_torch_does, query_by_query, in_float32],
    "to_experts": [choice_by_choice, counts_gathered, own_function],
}
WRONG = {
    "merge_outputs": [
        four_dimensions, in_place, with_shares(shares, keep_type=False), and_lse(torch.maximum),
        and_lse(lambda a, b: torch.logaddexp(a, b).clamp(min=torch.finfo(a.dtype).min)),
        with_shares(lambda a, b: shares(b, a)), with_shares(lambda a, b: ((a > b).float(), (a <= b).float())),
        lambda *given: merge_outputs(*given)[0],
    ],
    "to_experts": [
        two_choices_at_most, with_general(exchange=unknown_to_autograd), with_general(undo=False), chosen_zeroed,
        everybody_computes_all, more_bytes, at_home, with_general(back_alike=True), returns_early, nothing_on_rank_0,
    ],
}
HANGS = {returns_early}
