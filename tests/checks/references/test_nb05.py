"""A solution of notebook 05 against torch's own. (Answers have numpy's mean for the other.)"""

import torch.distributed as dist

from course_utils import launch
from course_utils.checks.nb05_ranks_and_collectives import numbers, ring_all_reduce


def test_ring_all_reduce_is_torchs():
    def found():
        ours, theirs = numbers(7), numbers(7)
        ring_all_reduce(ours)
        dist.all_reduce(theirs)
        return ours.equal(theirs)

    assert launch(found, ranks=3).results == 3 * [True]
