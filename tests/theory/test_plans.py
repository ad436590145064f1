"""The search for plans: every one uses all devices, the fastest come first, what does not fit is said in words."""

from __future__ import annotations

import pytest

from course_utils import CourseError
from course_utils.theory import cost
from course_utils.theory.cost import Cluster, Model, Plan

from .test_cost import A100, SMALL, megatron


@pytest.mark.parametrize("devices", [1, 2, 64, 16_384])
def test_every_plan_uses_all_devices(devices: int) -> None:
    found = cost.plans(megatron(32, 4096, 32), A100, devices=devices, batch=16_384)
    assert all(c.plan.devices == devices for c in found)
    steps = [c.step for c in found if c.fits]
    assert steps == sorted(steps)
    assert all(c.fits for c in found[: len(steps)])


def test_the_largest_search_finds_a_plan() -> None:
    found = cost.best(megatron(128, 25600, 128), A100, devices=16_384, batch=16_384)
    assert found.fits
    assert found.plan.tp <= 8  # within a node


def test_a_plan_that_cannot_fit_names_the_nearest() -> None:
    with pytest.raises(cost.DoesNotFit) as error:
        cost.nearest(megatron(32, 4096, 36), Plan(dp=64), A100, batch=512)
    words = str(error.value)
    assert "dp 64, tp 1, pp 1, ZeRO 0, micro-batch 1 does not fit: a device needs 130 GB" in words
    assert "49.6 GB more than the 80 GB it has: optimizer 89.6 GB" in words
    assert "Nearest that fits: ZeRO 1, all else equal: 41.4 GB a device, 5.66 s a step" in words
    assert error.value.nearest.fits
    assert error.value.nearest.plan == Plan(dp=64, zero=1)
    assert cost.nearest(megatron(32, 4096, 36), Plan(dp=64, zero=1), A100, batch=512).fits


def test_nothing_fits_names_how_many_devices_do() -> None:
    trillion = megatron(160, 25600, 128)
    with pytest.raises(cost.DoesNotFit, match=r"Nothing fits on 64 devices of 80 GB \(16.1 TB of states for 1.01e\+03 B"
                       r".*The fewest that do, at powers of two: 256 \("):
        cost.best(trillion, A100, devices=64, batch=512)
    with pytest.raises(cost.DoesNotFit, match="Nothing else fits on 1 device"):
        cost.nearest(trillion, Plan(), A100, batch=512)
    tiny = Cluster(memory=1e6, flops=1e12, bandwidth=1e9)
    with pytest.raises(cost.DoesNotFit, match="at powers of two up to 16,384 and with this batch: take more") as error:
        cost.best(trillion, tiny, devices=4096, batch=4096)
    assert error.value.nearest is None
    with pytest.raises(cost.DoesNotFit, match="No plan divides 4 layers, 4 heads and 3 sequences on 5 devices"):
        cost.best(SMALL, A100, devices=5, batch=3)
    with pytest.raises(cost.DoesNotFit, match=r"No plan divides.* on 200 devices. The fewest that do.*: 256 \("):
        cost.best(trillion, A100, devices=200, batch=4096)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Plan(dp=0), r"Plan\(dp=0\): dp is a whole number from 1"),
    (lambda: Cluster(memory="80GB", flops=1, bandwidth=1), r"Cluster\(memory='80GB'\): memory is a number above 0"),
    (lambda: Cluster(memory=1, flops=0, bandwidth=1), r"Cluster\(flops=0\): flops is a number above 0"),
    (lambda: Plan(recompute="all"), 'recompute is False, True or "attention"'),
    (lambda: Plan(dp=4, experts=3), "`experts` divides `dp`"),
    (lambda: Model(layers=2, width=8, heads=4, vocabulary=9, context=9, chosen=2), "a token goes to at most all"),
    (lambda: cost.estimate(SMALL, Plan(context=3), A100, batch=4), "3 does not divide the 64 tokens of a sequence"),
    (lambda: cost.estimate(SMALL, Plan(dp=2, experts=2), A100, batch=4), "2 does not divide the 1 experts"),
    (lambda: Plan(zero=4), "ZeRO has the stages 1, 2 and 3"),
    (lambda: Plan(dp=20_000), "takes 20,000 devices; the planner goes up to 16,384"),
    (lambda: Model(layers=2, width=10, heads=4, vocabulary=9, context=9), "the width is a multiple of the heads"),
    (lambda: cost.estimate(SMALL, Plan(tp=3), A100, batch=4), "3 does not divide the 4 heads"),
    (lambda: cost.estimate(SMALL, Plan(pp=3), A100, batch=4), "3 does not divide the 4 layers"),
    (lambda: cost.estimate(SMALL, Plan(dp=3), A100, batch=4), "3 does not divide the 4 sequences of the batch"),
    (lambda: cost.estimate(SMALL, Plan(pp=2, chunks=2), A100, batch=3), "by the 2; there are 3"),
    (lambda: cost.plans(SMALL, A100, devices=True, batch=3), "from 1 to 16,384"),
])
def test_bad_input_is_answered_in_words(make, words: str) -> None:
    with pytest.raises(CourseError, match=words):
        make()


def test_what_it_says() -> None:
    found = cost.estimate(SMALL, Plan(dp=4), A100, batch=16, precision=cost.FLOAT32)
    assert repr(found).startswith("dp 4, tp 1, pp 1, ZeRO 0, micro-batch 1: ")
    assert "activations" in found._repr_html_()
