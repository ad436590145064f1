"""Answers to the exercises of notebook 13."""

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd

from course_utils.checks.nb13_sequences_and_experts import merge_outputs, to_experts


def in_float32(out_a, lse_a, out_b, lse_b):
    a, b = lse_a.float(), lse_b.float()
    lse = torch.logaddexp(a, b)
    share = (a - lse).exp().nan_to_num(0.5).unsqueeze(-1)
    return (out_a.float() * share + out_b.float() * (1 - share)).type_as(out_a), lse.type_as(lse_a)


def query_by_query(out_a, lse_a, out_b, lse_b):
    out, lse = torch.zeros_like(out_a), torch.logaddexp(lse_a, lse_b)
    for at in map(tuple, (lse > -torch.inf).nonzero().tolist()):
        out[at] = (lse_a[at] - lse[at]).exp() * out_a[at] + (lse_b[at] - lse[at]).exp() * out_b[at]
    return [out, lse.to(lse_a.dtype)]


def four_dimensions(out_a, lse_a, out_b, lse_b):
    a, b = torch.stack([lse_a, lse_b]).softmax(0).nan_to_num().to(out_a.dtype)
    out = torch.einsum("bhn,bhnd->bhnd", a, out_a) + torch.einsum("bhn,bhnd->bhnd", b, out_b)
    return out, torch.logaddexp(lse_a, lse_b)


def in_the_type_of_lse(out_a, lse_a, out_b, lse_b):
    a, b = torch.stack([lse_a, lse_b]).softmax(0).nan_to_num().unsqueeze(-1)
    return out_a * a + out_b * b, torch.logaddexp(lse_a, lse_b)


def lse_as_it_comes(out_a, lse_a, out_b, lse_b):
    return merge_outputs(out_a, lse_a, out_b, lse_b)[0], torch.logaddexp(lse_a, lse_b)


def in_place(out_a, lse_a, out_b, lse_b):
    out, lse = merge_outputs(out_a, lse_a, out_b, lse_b)
    return out_a.copy_(out), lse_a.copy_(lse)


def shifted_by_a(out_a, lse_a, out_b, lse_b):
    """e^(lse_b - shift) is inf where b lies far above a."""
    shift = torch.where(lse_a.isinf(), lse_b.to(lse_a.dtype), lse_a).nan_to_num(neginf=0.0)
    a, b = (lse_a - shift).exp().unsqueeze(-1), (lse_b - shift).exp().unsqueeze(-1)
    out = ((out_a * a + out_b * b) / (a + b)).nan_to_num()
    return out.to(out_a.dtype), torch.logaddexp(lse_a, lse_b).to(lse_a.dtype)


def choice_by_choice(x, chosen, weights, expert):
    """One round for the first choices, one for the second, …"""

    def route(chosen):
        counts = chosen.bincount(minlength=dist.get_world_size())
        dist.all_to_all_single(coming := torch.empty_like(counts), counts)
        order, out, back = chosen.argsort(stable=True), counts.tolist(), coming.tolist()
        arrived = all_to_all_single_autograd(x[order], back, out, dist.group.WORLD)
        done = expert(input=arrived) if len(arrived) else arrived
        return all_to_all_single_autograd(done, out, back, dist.group.WORLD)[order.argsort()]

    return sum(weights[:, j, None] * route(chosen[:, j]) for j in range(chosen.shape[1]))


def counts_gathered(x, chosen, weights, expert):
    ranks, k = dist.get_world_size(), chosen.shape[1]
    counts = chosen.flatten().bincount(minlength=ranks)
    dist.all_gather(table := [torch.empty_like(counts) for _ in range(ranks)], counts)
    out, back = counts.tolist(), torch.stack(table)[:, dist.get_rank()].tolist()
    order = chosen.flatten().argsort(stable=True)
    arrived = all_to_all_single(x[order // k], back, out, dist.group.WORLD)
    results = all_to_all_single(expert(arrived), out, back, dist.group.WORLD)
    return torch.zeros_like(x).index_add(0, order // k, results * weights.flatten()[order, None])


def everybody_computes_all(x, chosen, weights, expert):
    ranks = dist.get_world_size()
    every = torch.arange(ranks, device=x.device).expand(len(x), ranks).contiguous()
    return to_experts(x, every, weights.new_zeros(every.shape).scatter(1, chosen, weights), expert)


def chosen_zeroed(x, chosen, weights, expert):
    y = to_experts(x, chosen, weights, expert)
    chosen.zero_()
    return y


def returns_early(x, chosen, weights, expert):
    return to_experts(x, chosen, weights, expert) if len(x) else x * weights.sum()


RIGHT = {
    "merge_outputs": [query_by_query, in_float32],
    "to_experts": [choice_by_choice, counts_gathered],
}
WRONG = {
    "merge_outputs": [
        four_dimensions,
        in_the_type_of_lse,
        lse_as_it_comes,
        in_place,
        shifted_by_a,
        lambda out_a, *more: merge_outputs(out_a.float(), *more),
        lambda *given: (merge_outputs(*given)[0], torch.maximum(*given[1::2])),
    ],
    "to_experts": [
        lambda x, chosen, weights, expert: to_experts(x, chosen[:, :2], weights[:, :2], expert),
        chosen_zeroed,
        everybody_computes_all,
        returns_early,
        lambda *given: to_experts(*given).squeeze(),
    ],
}
HANGS = {returns_early}
