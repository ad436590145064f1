"""Attention over ranks: what is equal to the whole passes, what is wrong is seen, bytes are
counted.
"""

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd

from course_utils import launch
from course_utils.lessons import sequences


def gathered(q, k, v, places):
    """Every rank gets all keys and values; right for tokens in order."""
    k, v = (all_gather_tensor_autograd(t, 2, dist.group.WORLD) for t in (k, v))
    seen = torch.cat(places) <= places[dist.get_rank()][:, None]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen.to(q.device))


def alone(q, k, v, places):
    return sequences.fused(q, k, v)


def test_right_and_wrong_attention():
    block, places = 8 * sequences.HEAD * 6 * 4, list(torch.arange(24).chunk(4))
    for rank in launch(sequences.against_whole, gathered, places, 8, ranks=4, device="cpu").results:
        assert rank.worst < 1e-5
        assert rank.forward == 6 * block, "keys and values, to three others each"
    for rank in launch(sequences.against_whole, alone, places, 8, ranks=4, device="cpu").results:
        assert rank.worst > 0.01, "also the first's: its keys miss gradients of others' queries"
