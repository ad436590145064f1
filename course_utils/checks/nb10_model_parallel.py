"""Exercises of notebook 10: who waits how long, and where to cut a stack of layers."""

import random
from itertools import combinations, islice, pairwise

from .exercise import exercise
from .instruments import counts_of_layers


def idle_shares(forward, backward):
    """A rank waits while the others' forward and backward last."""
    busy = [f + b for f, b in zip(forward, backward, strict=True)]
    return [1 - own / sum(busy) for own in busy]


def busy_shares(forward, backward):
    return [1 - share for share in idle_shares(forward, backward)]


def in_percent(forward, backward):
    return [100 * share for share in idle_shares(forward, backward)]


@exercise(
    idle_shares,
    mistakes={
        "these are the shares in which a rank computes; in the rest of the time it "
        "waits": busy_shares,
        "these are percent; a share is a number from 0 to 1": in_percent,
    },
)
def _(answer):
    draw = random.Random(6)
    drawn = [draw.choices((0, 0.0013, 0.002, 0.7), k=7) for _ in range(2)]  # equal ones, zeros
    for forward, backward in (
        ([1, 1], [2, 2]),
        ([1, 1, 2, 1], [2, 3, 1, 2]),
        ([5], [1]),
        ([0.0021, 0.0007, 0.0016], [0.0033, 0.0014, 0.0048]),
        ([2, 0, 0, 1], [0, 0, 3, 2]),
        drawn,
    ):
        call = f"idle_shares({forward}, {backward})"
        given = [*forward], [*backward]
        yield call, answer(*given)
        yield f"{call}: what it was given, afterwards", given
    yield "", "A stage that has less to do waits longer, and all shares of the time are right."


def balance(costs, stages):
    """Of all ways to cut, the one whose slowest stage is the fastest."""

    def slowest(cuts):
        return max(sum(costs[a:b]) for a, b in pairwise((0, *cuts, len(costs))))

    cuts = min(combinations(range(1, len(costs)), stages - 1), key=slowest)
    return [b - a for a, b in pairwise((0, *cuts, len(costs)))]


def stage_costs(costs, counts):
    layers = iter(costs)
    return [sum(islice(layers, count)) for count in counts]


@exercise(balance)
def _(answer):
    draw = random.Random(5)
    cases = [
        ([1] * 8, 4),
        ([5, 4, 3], 3),
        ([2, 3], 1),
        ([4, 4, 1, 1, 1, 1, 2, 2], 4),
        ([1.002, 1.0, 1.001, 1.003, 1.002], 2),
        ([0.03, 0.01, 0.01, 0.01, 0.02], 2),
        ([10, 1, 1, 1], 3),
        ([6, 5, 8, 4], 3),
    ]
    for stages in (2, 3, 4, 5):  # layers that are alike, and some that are far larger
        for power in (1, 5):
            cases.append(([draw.randint(2, 9) ** power / 1000 for _ in range(10)], stages))
    for costs, stages in cases:
        call = f"balance({costs}, {stages})"
        given = [*costs]
        counts = yield from counts_of_layers(call, answer(given, stages))
        slowest = max(stage_costs(costs, counts))
        yield f"{call}: the cost of its slowest stage", slowest
        yield f"{call}: the costs afterwards", given
    yield "", "The slowest stage is as fast as can be each time."
