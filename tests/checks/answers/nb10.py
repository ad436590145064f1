"""Answers to the exercises of notebook 10."""

import functools
import itertools
from fractions import Fraction

import numpy as np

from course_utils.checks.nb10_model_parallel import balance, idle_shares, stage_costs


def with_numpy(forward, backward):
    own = np.add(forward, backward)
    return 1 - own / own.sum()


def in_numbers(of):
    """With times that are made numbers of this kind first."""

    def idle_shares(forward, backward):
        own = [of(f) + of(b) for f, b in zip(forward, backward, strict=True)]
        return [1 - each / sum(own) for each in own]

    return idle_shares


def uses_up(forward, backward):
    shares = idle_shares(forward, backward)
    forward.clear()
    return shares


def shares_of_each_pass(forward, backward):
    """The mean of two shares is the share of the sum only where the passes last equally long."""
    return [
        1 - (f / sum(forward) + b / sum(backward)) / 2
        for f, b in zip(forward, backward, strict=True)
    ]


def never_waits_without_work(forward, backward):
    total = sum(forward) + sum(backward)
    return [1 - (f + b) / total if f + b else 0.0 for f, b in zip(forward, backward, strict=True)]


def of_all_counts(costs, stages):
    counts = itertools.product(range(1, len(costs) + 1), repeat=stages)
    return min(
        (way for way in counts if sum(way) == len(costs)),
        key=lambda way: max(stage_costs(costs, way)),
    )


def by_recursion(costs, stages):
    @functools.cache
    def best(start, stages):
        if stages == 1:
            return sum(costs[start:]), [len(costs) - start]
        ends = range(start + 1, len(costs) - stages + 2)
        rests = [(end, *best(end, stages - 1)) for end in ends]
        return min(
            (max(sum(costs[start:end]), rest), [end - start, *counts])
            for end, rest, counts in rests
        )

    return np.array(best(0, stages)[1])


def equal_counts(costs, stages):
    return [len(part) for part in np.array_split(costs, stages)]


def least_variance(costs, stages):
    ways = [
        np.split(costs, cuts) for cuts in itertools.combinations(range(1, len(costs)), stages - 1)
    ]
    return [len(part) for part in min(ways, key=lambda way: np.var([part.sum() for part in way]))]


def whole_costs(costs, stages):
    return balance([int(cost) for cost in costs], stages)


def sorts_them(costs, stages):
    costs.sort(reverse=True)
    return balance(costs, stages)


RIGHT = {
    "idle_shares": [in_numbers(Fraction), with_numpy],
    "balance": [of_all_counts, by_recursion],
}
WRONG = {
    "idle_shares": [
        shares_of_each_pass,
        uses_up,
        in_numbers(lambda seconds: int(1000 * seconds)),
        never_waits_without_work,
    ],
    "balance": [
        sorts_them,
        whole_costs,
        least_variance,
        equal_counts,
        lambda costs, stages: (
            [0, *[1] * (stages - 2), len(costs) - stages + 2] if stages > 1 else [len(costs)]
        ),
    ],
}
