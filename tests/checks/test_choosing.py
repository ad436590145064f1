"""The exercises on choosing a strategy: published solutions pass, wrong answers are told what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from course_utils import check
from course_utils.theory import cost


@pytest.mark.parametrize("name", ["groups", "within_budget", "fewest_devices"])
def test_solution(name):
    exercise = getattr(check, name)
    verdict = exercise(exercise.published)
    assert verdict, str(verdict)


def data_innermost(rank, dp, tp, pp):
    stage, part, replica = rank // (dp * tp), rank // dp % tp, rank % dp
    return {
        "tensor": [(stage * tp + i) * dp + replica for i in range(tp)],
        "data": [(stage * tp + part) * dp + i for i in range(dp)],
        "pipeline": [(i * tp + part) * dp + replica for i in range(pp)],
    }


def without_myself(rank, dp, tp, pp):
    return {axis: [r for r in ranks if r != rank] for axis, ranks in check.groups.published(rank, dp, tp, pp).items()}


def one_list(rank, dp, tp, pp):
    return list(range(dp * tp * pp))


@pytest.mark.parametrize("answer", [data_innermost, without_myself, one_list], ids=lambda f: f.__name__)
def test_groups_wrong(answer):
    verdict = check.groups(answer)
    assert verdict.state == "wrong"
    assert "groups(0, dp=2, tp=2, pp=1)" in verdict.text
    assert "'tensor': [0, 1], 'data': [0, 2]" in verdict.expected
    assert verdict.got


def test_groups_in_any_order_pass():
    assert check.groups(lambda rank, dp, tp, pp: dict(reversed(check.groups.published(rank, dp, tp, pp).items())))


def test_groups_of_numpys_integers_pass():
    def groups(rank, dp, tp, pp):
        ranks = np.arange(dp * tp * pp).reshape(pp, dp, tp)
        stage, replica, part = (int(i[0]) for i in np.where(ranks == rank))
        return {"tensor": list(ranks[stage, replica]), "data": tuple(ranks[stage, :, part]),
                "pipeline": list(ranks[:, replica, part])}  # fmt: skip

    assert check.groups(groups)


def fastest(model, cluster, devices, batch, most_sent):
    return cost.best(model, cluster, devices=devices, batch=batch).plan


def first_that_sends_little(model, cluster, devices, batch, most_sent):
    found = cost.plans(model, cluster, devices=devices, batch=batch)
    return min(found, key=lambda c: (sum(c.sent.values()) > most_sent, c.step)).plan


def sends_least(model, cluster, devices, batch, most_sent):
    fitting = [c for c in cost.plans(model, cluster, devices=devices, batch=batch) if c.fits]
    return min(fitting, key=lambda c: sum(c.sent.values())).plan


def first_that(keeps):
    def within_budget(model, cluster, devices, batch, most_sent):
        found = cost.plans(model, cluster, devices=devices, batch=batch)
        return next(c.plan for c in found if c.fits and keeps(c, most_sent))

    return within_budget


@pytest.mark.parametrize("keeps", [
    lambda c, most: max(c.sent.values()) <= most,
    lambda c, most: c.sent["data"] <= most,
    lambda c, most: c.sent["data"] + c.sent["tensor"] <= most,
    lambda c, most: c.sent["data"] + c.sent["pipeline"] <= most,
    lambda c, most: c.sent["tensor"] + c.sent["pipeline"] <= most,
    lambda c, most: sum(c.sent.values()) < most,
    lambda c, most: sum(c.sent.values()) / 2**30 <= most / 1e9,
    lambda c, most: sum(c.sent.values()) <= most and not c.plan.recompute,
    lambda c, most: sum(c.sent.values()) <= most and c.plan.pp == 1,
])  # fmt: skip
def test_within_another_budget(keeps):
    assert check.within_budget(first_that(keeps)).state == "wrong"
    assert check.within_budget(first_that(lambda c, most: sum(c.sent.values()) <= most))


def whole_cost(model, cluster, devices, batch, most_sent):
    return cost.best(model, cluster, devices=devices, batch=batch)


def fewer_devices(model, cluster, devices, batch, most_sent):
    return cost.Plan(pp=2)


@pytest.mark.parametrize(("answer", "why", "expected", "got"), [
    (fastest, "the plan sends too much", "at most 12 GB a step", "14.5 GB with dp 8"),
    (sends_least, "there is a faster plan", "s a step", "s with dp"),
    (first_that_sends_little, "the plan does not fit", "a device", "with dp"),
    (whole_cost, "return its plan", "a Plan", "a Cost"),
    (fewer_devices, "another number of devices", "16", "2: dp 1"),
    (lambda model, cluster, devices, batch, most_sent: "dp 8", "what it returned", "Plan", "dp 8"),
], ids=lambda value: getattr(value, "__name__", ""))  # fmt: skip
def test_within_budget_wrong(answer, why, expected, got):
    verdict = check.within_budget(answer)
    assert verdict.state == "wrong"
    assert why in verdict.text
    assert expected in verdict.expected
    assert got in verdict.got


def only_fits(model, cluster, batch, seconds):
    devices = 1
    while not cost.plans(model, cluster, devices=devices, batch=batch)[0].fits:
        devices *= 2
    return devices


def only_fast(model, cluster, batch, seconds):
    devices = 1
    while min(c.step for c in cost.plans(model, cluster, devices=devices, batch=batch)) > seconds:
        devices *= 2
    return devices


@pytest.mark.parametrize(("answer", "why", "expected"), [
    (only_fits, "the best on 2 is too slow", "64"),
    (only_fast, "the best on 1 does not fit", "2"),
    (lambda model, cluster, batch, seconds: 512, "8 s", "64"),
])  # fmt: skip
def test_fewest_devices_wrong(answer, why, expected):
    verdict = check.fewest_devices(answer)
    assert verdict.state == "wrong"
    assert why in verdict.text
    assert verdict.expected == expected


def test_fewest_devices_of_numpy_pass():
    def fewest_devices(model, cluster, batch, seconds):
        best = {n: cost.plans(model, cluster, devices=int(n), batch=batch) for n in 2 ** np.arange(10)}
        return next(n for n, found in best.items() if found and found[0].fits and found[0].step <= seconds)

    assert check.fewest_devices(fewest_devices)


def test_an_answer_that_raises_is_shown_without_our_frames():
    def fewest_devices(model, cluster, batch, seconds):
        return cost.best(model, cluster, devices=1, batch=batch).plan.devices

    verdict = check.fewest_devices(fewest_devices)
    assert verdict.state == "wrong"
    assert "Nothing fits on 1 device" in verdict.text
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
