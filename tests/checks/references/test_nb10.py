"""A solution of notebook 10 against a batch's walk through the stages. (Answers have all ways to
cut for the other.)
"""

import pytest

from course_utils.checks.nb10_model_parallel import idle_shares


def test_idle_shares_are_those_of_a_walk():
    forward, backward = [3.0, 1.0, 2.0, 0.5], [6.0, 2.0, 2.0, 0.0]
    idle = [0.0] * 4
    # all others wait
    for rank, seconds in [*enumerate(forward), *reversed([*enumerate(backward)])]:
        idle = [idle[other] + (seconds if other != rank else 0) for other in range(4)]
    assert idle_shares(forward, backward) == pytest.approx([one / 16.5 for one in idle])
