"""Answers to the exercises of notebook 10."""

import functools
import itertools
from array import array
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


def in_an_array(*given):
    return array("d", idle_shares(*given))


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


def looked_up(forward, backward):
    return idle_shares(forward, [dict(zip(forward, backward, strict=True))[f] for f in forward])


def needs(one):
    """A stage that lacks this pass has nothing to do."""

    def idle_shares(forward, backward):
        own = [one(both) and sum(both) for both in zip(forward, backward, strict=True)]
        return [1 - each / sum(own) for each in own]

    return idle_shares


def all_counts(costs, stages, least=1):
    counts = itertools.product(range(least, len(costs) + 1), repeat=stages)
    return [way for way in counts if sum(way) == len(costs)]


def of_all_counts(costs, stages, of=max, least=1):
    return min(all_counts(costs, stages, least), key=lambda way: of(stage_costs(costs, way)))


def smallest_spread(costs, stages):
    return of_all_counts(costs, stages, lambda each: max(each) - min(each))


def closest_to_the_mean(costs, stages):
    return of_all_counts(costs, stages, lambda each: sum(cost**2 for cost in each))


def with_empty_stages(costs, stages):
    return of_all_counts(costs, stages, least=0)


def fewer_stages(costs, stages):
    return [count for count in with_empty_stages(costs, stages) if count]


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


def never_long(costs, stages):
    """No stage has more than two layers beyond an equal share."""
    most = -(-len(costs) // stages) + 2
    ways = (cut for cut in all_counts(costs, stages) if max(cut) <= most)
    return min(ways, key=lambda way: max(stage_costs(costs, way)))


def sorts_them(costs, stages):
    costs.sort(reverse=True)
    return balance(costs, stages)


RIGHT = {
    "idle_shares": [
        in_numbers(Fraction),
        with_numpy,
        in_an_array,
    ],
    "balance": [of_all_counts, by_recursion],
}
WRONG = {
    "idle_shares": [
        shares_of_each_pass,
        uses_up,
        never_waits_without_work,
        looked_up,
        needs(lambda both: both[0]),
        needs(lambda both: both[1]),
    ],
    "balance": [
        smallest_spread,
        closest_to_the_mean,
        with_empty_stages,
        fewer_stages,
        sorts_them,
        never_long,
        lambda costs, stages: str(balance(costs, stages)),
        equal_counts,
        lambda costs, stages: (
            [0, *[1] * (stages - 2), len(costs) - stages + 2] if stages > 1 else [len(costs)]
        ),
    ],
}
