"""The exercises on choosing a strategy: right answers of any style pass, wrong ones are told what is wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from course_utils import check, planner
from tests.checks.judging import judge, solved


@pytest.mark.parametrize("name", ["groups", "within_budget"])
def test_solution(name):
    exercise = getattr(check, name)
    verdict = exercise(exercise.published)
    assert verdict, str(verdict)


def by_numpy(rank, dp, tp, pp):
    ranks = np.arange(dp * tp * pp).reshape(pp, dp, tp)
    stage, replica, part = (int(i[0]) for i in np.where(ranks == rank))
    return {"tensor": list(ranks[stage, replica]), "data": tuple(ranks[stage, :, part]),
            "pipeline": list(ranks[:, replica, part])}


def by_torch(rank, dp, tp, pp):
    mesh = torch.arange(dp * tp * pp).view(pp, dp, tp)
    s, d, t = (mesh == rank).nonzero()[0]
    return {"pipeline": mesh[:, d, t].tolist(), "data": mesh[s, :, t].tolist(), "tensor": mesh[s, d].tolist()}


def by_search(rank, dp, tp, pp):
    def place(r):
        return {"pipeline": r // (dp * tp), "data": r // tp % dp, "tensor": r % tp}

    def mates(axis):
        mine = place(rank)
        return [r for r in range(dp * tp * pp) if all(place(r)[a] == mine[a] for a in mine if a != axis)]

    return {axis: mates(axis) for axis in ("tensor", "data", "pipeline")}


def by_steps(rank, dp, tp, pp):
    first = rank - rank % tp
    start = rank - rank // tp % dp * tp
    return {"tensor": [*range(first, first + tp)], "data": [*range(start, start + dp * tp, tp)],
            "pipeline": [*range(rank % (dp * tp), dp * tp * pp, dp * tp)]}


def by_product(rank, dp, tp, pp):
    places = list(itertools.product(range(pp), range(dp), range(tp)))
    mine = places[rank]
    found = {}
    for i, axis in enumerate(("pipeline", "data", "tensor")):
        found[axis] = [r for r, other in enumerate(places) if other[:i] + other[i + 1 :] == mine[:i] + mine[i + 1 :]]
    return found


@pytest.mark.parametrize("answer", [by_numpy, by_torch, by_search, by_steps, by_product], ids=lambda f: f.__name__)
def test_groups_right(answer):
    solved("groups", answer)


def data_innermost(rank, dp, tp, pp):
    stage, part, replica = rank // (dp * tp), rank // dp % tp, rank % dp
    return {
        "tensor": [(stage * tp + i) * dp + replica for i in range(tp)],
        "data": [(stage * tp + part) * dp + i for i in range(dp)],
        "pipeline": [(i * tp + part) * dp + replica for i in range(pp)],
    }


def changed(change):
    return lambda rank, dp, tp, pp: change(check.groups.published(rank, dp, tp, pp), rank, dp, tp, pp)


WRONG_GROUPS = {
    "data innermost": data_innermost,
    "without myself": changed(lambda g, rank, *_: {axis: [r for r in ranks if r != rank] for axis, ranks in g.items()}),
    "one list": lambda rank, dp, tp, pp: list(range(dp * tp * pp)),
    "names swapped": changed(lambda g, *_: {"tensor": g["data"], "data": g["tensor"], "pipeline": g["pipeline"]}),
    "coordinates": lambda rank, dp, tp, pp: {"tensor": rank % tp, "data": rank // tp % dp, "pipeline": rank // tp},
    "myself first": changed(lambda g, rank, *_: {a: sorted(ranks, key=lambda r: r != rank) for a, ranks in g.items()}),
    "one axis lost": changed(lambda g, *_: {"tensor": g["tensor"], "data": g["data"]}),
    "first groups": lambda rank, dp, tp, pp: check.groups.published(0, dp, tp, pp),
    "from 1": changed(lambda g, *_: {axis: [r + 1 for r in ranks] for axis, ranks in g.items()}),
    "stages one after the other": lambda rank, dp, tp, pp: {
        **check.groups.published(rank, dp, tp, pp), "pipeline": list(range(rank // pp * pp, rank // pp * pp + pp))},
}


@pytest.mark.parametrize("name", WRONG_GROUPS)
def test_groups_wrong(name):
    verdict = check.groups(WRONG_GROUPS[name])
    assert verdict.state == "wrong"
    assert "dp=2, tp=2, pp=1" in verdict.text or "dp=1, tp=2, pp=2" in verdict.text
    assert "beside torch's mesh on 4 real ranks" in verdict.text
    assert verdict.got


def all_of(model, cluster, devices, batch):
    return planner.plans(model, cluster, devices=devices, batch=batch)


def by_comprehension(model, cluster, devices, batch, most_sent):
    able = [c.plan for c in all_of(model, cluster, devices, batch) if c.fits and sum(c.sent.values()) <= most_sent]
    return able[0]


def by_minimum(model, cluster, devices, batch, most_sent):
    able = (c for c in all_of(model, cluster, devices, batch)
            if c.total <= cluster.memory and sum(c.sent.values()) <= most_sent)
    return min(able, key=lambda c: c.step).plan


def by_sorting(model, cluster, devices, batch, most_sent):
    found = sorted(all_of(model, cluster, devices, batch), key=lambda c: sum(c.seconds.values()))
    for one in found:
        sent = 0
        for count in one.sent.values():
            sent += count
        if one.fits and not sent > most_sent:
            return one.plan
    return None


def by_numpy_budget(model, cluster, devices, batch, most_sent):
    found = all_of(model, cluster, devices, batch)
    able = np.array([c.fits and sum(c.sent.values()) <= most_sent for c in found])
    return found[int(np.argmax(able))].plan


def by_own_list(model, cluster, devices, batch, most_sent):
    best = None
    for plan in (c.plan for c in all_of(model, cluster, devices, batch)):
        again = planner.estimate(model, planner.Plan(**vars(plan)), cluster, batch=batch)
        good = again.fits and sum(again.sent.values()) <= most_sent
        if good and (best is None or again.step < best.step):
            best = again
    return best.plan


@pytest.mark.parametrize("answer", [by_comprehension, by_minimum, by_sorting, by_numpy_budget, by_own_list],
                         ids=lambda f: f.__name__)
def test_within_budget_right(answer):
    solved("within_budget", answer)


def first_that(keeps):
    def within_budget(model, cluster, devices, batch, most_sent):
        return next(c.plan for c in all_of(model, cluster, devices, batch) if c.fits and keeps(c, most_sent))

    return within_budget


def total(c):
    return sum(c.sent.values())


@pytest.mark.parametrize(("keeps", "why"), [
    (lambda c, most: True, "sends too much"),
    (lambda c, most: max(c.sent.values()) <= most, "sends too much"),
    (lambda c, most: c.sent["data"] <= most, "sends too much"),
    (lambda c, most: c.sent["data"] + c.sent["tensor"] <= most, "sends too much"),
    (lambda c, most: c.sent["data"] + c.sent["pipeline"] <= most, "sends too much"),
    (lambda c, most: c.sent["tensor"] + c.sent["pipeline"] <= most, "sends too much"),
    (lambda c, most: total(c) < most, "StopIteration"),
    (lambda c, most: total(c) / 2**30 <= most / 1e9, "sends too much"),
    (lambda c, most: total(c) <= most and not c.plan.recompute, "there is a faster plan"),
    (lambda c, most: total(c) <= most and c.plan.pp == 1, "StopIteration"),
    (lambda c, most: total(c) <= most and c.plan.tp == 1, "there is a faster plan"),
    (lambda c, most: total(c) <= most and c.plan.zero <= 1, "there is a faster plan"),
    (lambda c, most: total(c) <= most and c.plan.micro == 1, "there is a faster plan"),
])
def test_within_another_budget(keeps, why):
    verdict = check.within_budget(first_that(keeps))
    assert verdict.state == "wrong"
    assert why in verdict.text, str(verdict)


def first_that_sends_little(model, cluster, devices, batch, most_sent):
    return min(all_of(model, cluster, devices, batch), key=lambda c: (total(c) > most_sent, c.step)).plan


def sends_least(model, cluster, devices, batch, most_sent):
    return min((c for c in all_of(model, cluster, devices, batch) if c.fits), key=total).plan


@pytest.mark.parametrize(("answer", "why", "expected", "got"), [
    (sends_least, "there is a faster plan", "s a step", "s with dp"),
    (first_that_sends_little, "the plan does not fit", "at most", "with dp"),
    (lambda *args: all_of(*args[:4])[0], "return its plan", "a Plan", "a Cost"),
    (lambda *args: planner.Plan(pp=2), "another number of devices", "16", "2: dp 1"),
    (lambda *args: "dp 8", "what it returned", "Plan", "dp 8"),
])
def test_within_budget_wrong(answer, why, expected, got):
    def within_budget(model, cluster, devices, batch, most_sent):
        return answer(model, cluster, devices, batch, most_sent)

    verdict = judge("within_budget", within_budget, why)
    assert expected in verdict.expected
    assert got in verdict.got


def test_an_answer_that_raises_is_shown_without_our_frames():
    def within_budget(model, cluster, devices, batch, most_sent):
        return planner.nearest(model, planner.Plan(), cluster, batch=batch).plan

    verdict = check.within_budget(within_budget)
    assert verdict.state == "wrong"
    assert "does not fit: a device needs" in verdict.text
    assert "Traceback" not in str(verdict)

    def groups(rank, dp, tp, pp):
        return {"tensor": [rank // 0]}

    verdict = check.groups(groups)
    assert "ZeroDivisionError" in verdict.text
    assert "course_utils" not in str(verdict)


def test_stub():
    def groups(rank, dp, tp, pp):
        """Ranks in the group of `rank` along each axis."""

    assert check.groups(groups).state == "not yet"
