"""Notebook 10's solutions, held against a batch's walk through the stages and against all ways to
cut.
"""

import itertools
import random

import pytest

from course_utils.checks.nb10_model_parallel import balance, idle_shares, stage_costs


def test_idle_shares_are_those_of_a_walk():
    forward, backward = [3.0, 1.0, 2.0, 0.5], [6.0, 2.0, 2.0, 0.0]
    idle = [0.0] * 4
    # all others wait
    for rank, seconds in [*enumerate(forward), *reversed([*enumerate(backward)])]:
        idle = [idle[other] + (seconds if other != rank else 0) for other in range(4)]
    assert idle_shares(forward, backward) == pytest.approx([one / 16.5 for one in idle])


def test_no_way_to_cut_has_a_faster_slowest_stage():
    draw = random.Random(1)
    for stages in (1, 2, 3, 4):
        costs = [draw.randint(1, 9) for _ in range(7)]
        ways = [way for way in itertools.product(range(1, 8), repeat=stages) if sum(way) == 7]
        best = min(max(stage_costs(costs, way)) for way in ways)
        assert balance(costs, stages) in map(list, ways)
        assert max(stage_costs(costs, balance(costs, stages))) == best
