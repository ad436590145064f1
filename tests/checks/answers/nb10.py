"""Answers to the exercises of notebook 10."""

import functools
import itertools
from fractions import Fraction

import numpy as np

from course_utils.checks.nb10_model_parallel import balance, idle_shares


def others_over_all(forward, backward):
    total = sum(forward) + sum(backward)
    return tuple((total - f - b) / total for f, b in zip(forward, backward, strict=True))


def with_numpy(forward, backward):
    own = np.add(forward, backward)
    return 1 - own / own.sum()


def with_fractions(forward, backward):
    own = [Fraction(f) + Fraction(b) for f, b in zip(forward, backward, strict=True)]
    return [1 - each / sum(own) for each in own]


def uses_up(forward, backward):
    own = []
    while forward:
        own.append(forward.pop(0) + backward.pop(0))
    return [1 - each / sum(own) for each in own]


def shares_of_each_pass(forward, backward):
    """The mean of two shares is the share of the sum only where the passes last equally long."""
    return [1 - (f / sum(forward) + b / sum(backward)) / 2 for f, b in zip(forward, backward, strict=True)]


def by_bisection(costs, stages):
    """The least limit under which filling each stage needs no more of them than there are."""

    def filled(limit):
        counts, room = [0], 0
        for i, cost in enumerate(costs):
            if counts[-1] and (room + cost > limit or len(costs) - i <= stages - len(counts)):
                counts.append(0)
                room = 0
            counts[-1] += 1
            room += cost
        return counts

    return next(counts for limit in range(max(costs), sum(costs) + 1) if len(counts := filled(limit)) == stages)


def by_recursion(costs, stages):
    @functools.cache
    def best(start, stages):
        if stages == 1:
            return sum(costs[start:]), [len(costs) - start]
        ends = range(start + 1, len(costs) - stages + 2)
        rests = [(end, *best(end, stages - 1)) for end in ends]
        return min((max(sum(costs[start:end]), rest), [end - start, *counts]) for end, rest, counts in rests)

    return np.array(best(0, stages)[1])


def equal_counts(costs, stages):
    return [len(part) for part in np.array_split(costs, stages)]


def least_variance(costs, stages):
    ways = [np.split(costs, cuts) for cuts in itertools.combinations(range(1, len(costs)), stages - 1)]
    return [len(part) for part in min(ways, key=lambda way: np.var([part.sum() for part in way]))]


def largest_alone(costs, stages):
    cuts = sorted(sorted(range(1, len(costs)), key=lambda i: -costs[i])[: stages - 1])
    return [b - a for a, b in itertools.pairwise([0, *cuts, len(costs)])]


def sorts_them(costs, stages):
    costs.sort(reverse=True)
    return balance(costs, stages)


RIGHT = {"idle_shares": [with_fractions, with_numpy, others_over_all], "balance": [by_bisection, by_recursion]}
WRONG = {
    "idle_shares": [
        shares_of_each_pass, uses_up, lambda forward, backward: 1 - 1 / len(forward),
        lambda forward, backward: idle_shares(forward, forward), lambda forward, backward: [0.5, 0.5],
    ],
    "balance": [
        sorts_them, least_variance, equal_counts, largest_alone, lambda costs, stages: [len(costs) / stages] * stages,
        lambda costs, stages: [0, *[1] * (stages - 2), len(costs) - stages + 2] if stages > 1 else [len(costs)],
    ],
}
