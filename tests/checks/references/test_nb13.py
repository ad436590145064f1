"""The published solutions of notebook 13 against attention over all keys in float64, and all
experts in one process.
"""

import torch

from course_utils import launch
from course_utils.checks import nb13_sequences_and_experts as nb13


def test_merged_parts_are_attention_over_all_keys():
    for *case, types, tol in nb13.PARTS.values():
        parts = nb13.two_parts(*case)
        scores = torch.cat([scores for scores, _ in parts], dim=-1)
        values = torch.cat([values for _, values in parts], dim=-2)
        given = [*nb13.attention(*parts[0]), *nb13.attention(*parts[1])]
        out, lse = nb13.merge_outputs(*map(torch.Tensor.to, given, types))
        assert [out.dtype, lse.dtype] == types[:2]
        whole = nb13.attention(scores, values)
        torch.testing.assert_close((out.double(), lse.double()), whole, atol=tol, rtol=tol)


def on_a_rank(chosen_by):
    import torch.distributed as dist

    rank = dist.get_rank()
    (x, chosen, weights), expert = nb13.tokens_of(rank, chosen_by[rank]), nb13.expert_of(rank)
    y = nb13.to_experts(x, chosen, weights, expert)
    y.square().sum().backward()
    return [tensor.cpu() for tensor in (y.detach(), x.grad, weights.grad, expert[0].weight.grad)]


def test_experts_are_those_of_one_process():
    for chosen_by in nb13.routes(3).values():
        experts, loss, expected = [nb13.expert_of(rank) for rank in range(3)], 0.0, []
        for rank in range(3):
            x, chosen, weights = nb13.tokens_of(rank, chosen_by[rank])
            each = torch.stack([expert(x) for expert in experts], dim=1)  # (T, experts, D)
            y = (each.take_along_dim(chosen[..., None], 1) * weights[..., None]).sum(1)
            loss = loss + y.square().sum()
            expected.append([y, x, weights, experts[rank][0].weight])
        loss.backward()
        wanted = [
            [y.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)] for y, *leaves in expected
        ]
        torch.testing.assert_close(launch(on_a_rank, chosen_by, ranks=3).results, wanted)
