"""The comparisons for sequences and experts: what is equal passes, what is wrong is seen, bytes are counted."""

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd

from course_utils import launch
from course_utils.lessons import experts, sequences


def in_order(n, ranks):
    return list(torch.arange(n).chunk(ranks))


def gathered(q, k, v, places):
    """Every rank gets all keys and values; right for tokens in order."""
    k, v = (all_gather_tensor_autograd(t, 2, dist.group.WORLD) for t in (k, v))
    seen = torch.cat(places) <= places[dist.get_rank()][:, None]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen.to(q.device))


def alone(q, k, v, places):
    return sequences.fused(q, k, v)


def test_right_and_wrong_attention():
    block = sequences.HEADS * sequences.HEAD * 6 * 4
    for rank in launch(sequences.against_whole, gathered, in_order, 24, ranks=4, device="cpu").results:
        assert rank.worst < 1e-5
        assert rank.forward == 6 * block, "keys and values, to three others each"
    first, *others = launch(sequences.against_whole, alone, in_order, 24, ranks=4, device="cpu").results
    assert first.worst > 0.01, "its keys miss gradients of the others' queries"
    assert all(rank.worst > 0.01 for rank in others)


def test_the_whole_mixture_of_experts():
    router, mlps = experts.layer(3)
    x = torch.randn(10, experts.WIDTH)
    y = experts.whole_layer(x, router, mlps)
    for row, out in zip(x, y, strict=True):
        chance, chosen = router(row).softmax(-1).max(-1)
        assert torch.allclose(out, chance * mlps[chosen](row), atol=1e-6)
    again, _ = experts.layer(3)
    assert torch.equal(router.weight, again.weight)


def test_an_expert_at_home_is_wrong():
    def at_home(x, router, expert):
        return router(x).softmax(-1).max(-1).values[:, None] * expert(x)

    found = launch(experts.against_whole, at_home, 24, ranks=2, device="cpu").results
    assert all(worst > 0.01 for worst, _ in found)
    assert all(not traffic.calls for _, traffic in found)
