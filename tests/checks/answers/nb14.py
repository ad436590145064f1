"""Answers to the exercises of notebook 14."""

import numpy as np
import torch

from course_utils import planner
from course_utils.checks.nb14_choosing_a_strategy import groups


def by_torch(rank, dp, tp, pp):
    mesh = torch.arange(dp * tp * pp).view(pp, dp, tp)
    s, d, t = (mesh == rank).nonzero()[0]
    return {
        "pipeline": mesh[:, d, t],
        "data": mesh[s, :, t].tolist(),
        "tensor": mesh[s, d].tolist(),
    }


def by_steps(rank, dp, tp, pp):
    first, start = rank - rank % tp, rank - rank // tp % dp * tp
    return {
        "tensor": range(first, first + tp),
        "data": range(start, start + dp * tp, tp),
        "pipeline": range(rank % (dp * tp), dp * tp * pp, dp * tp),
    }


def each(change):
    """The right groups, with one thing changed in each of them."""
    return lambda rank, dp, tp, pp: {
        axis: change(rank, ranks) for axis, ranks in groups(rank, dp, tp, pp).items()
    }


def of_eight(rank, dp, tp, pp):
    return {
        "tensor": sorted([rank, rank ^ 1]),
        "data": sorted([rank, rank ^ 2]),
        "pipeline": sorted([rank, rank ^ 4]),
    }


def costs(model, cluster, devices, batch):
    return planner.plans(model, cluster, devices=devices, batch=batch)


def total(cost):
    return sum(cost.sent.values())


def by_minimum(model, cluster, devices, batch, most_sent):
    able = (
        c
        for c in costs(model, cluster, devices, batch)
        if c.total <= cluster.memory and total(c) <= most_sent
    )
    return planner.Plan(**vars(min(able, key=lambda c: c.step).plan))


def by_numpy_index(model, cluster, devices, batch, most_sent):
    found = costs(model, cluster, devices, batch)
    return found[int(np.argmax([c.fits and total(c) <= most_sent for c in found]))].plan


def first_that(keeps):
    """The plan of the first that fits and keeps to this budget."""

    def within_budget(model, cluster, devices, batch, most_sent):
        return next(
            c.plan for c in costs(model, cluster, devices, batch) if c.fits and keeps(c, most_sent)
        )

    return within_budget


def lowest(key, among=slice(None)):
    """The plan of the lowest key, of those that keep to the budget or, with a slice, of some."""

    def within_budget(model, cluster, devices, batch, most_sent):
        found = costs(model, cluster, devices, batch)
        able = [c for c in found[among] if c.fits and total(c) <= most_sent]
        return min(able or found, key=key).plan

    return within_budget


def fastest_that_sends_little(model, cluster, devices, batch, most_sent):
    return min(
        costs(model, cluster, devices, batch), key=lambda c: (total(c) > most_sent, c.step)
    ).plan


RIGHT = {"groups": [by_torch, by_steps], "within_budget": [by_minimum, by_numpy_index]}
WRONG = {
    "groups": [
        of_eight,
        each(lambda rank, ranks: [float(r) for r in ranks]),
        each(lambda rank, ranks: sorted(ranks, key=lambda r: r != rank)),
    ],
    "within_budget": [
        first_that(lambda c, most: total(c) <= 1.01 * most),
        first_that(lambda c, most: total(c) < most),
        fastest_that_sends_little,
        lowest(lambda c: (round(c.step, 1), total(c))),
        lowest(lambda c: c.step * (1 + c.total / 400e9)),
        lowest(lambda c: c.step, slice(100)),
        first_that(lambda c, most: total(c) <= most and not c.plan.recompute),
    ],
}
