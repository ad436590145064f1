"""The planner agrees with what was published, and says in words what does not fit."""

from __future__ import annotations

import subprocess
import sys

import pytest

from course_utils import CourseError
from course_utils.theory import cost, estimate, schedules
from course_utils.theory.cost import FLOAT32, Cluster, Model, Plan

GB = 1e9
A100 = Cluster(memory=80 * GB, flops=140e12, bandwidth=250e9, node=8, far_bandwidth=25e9)
# Megatron-LM 2021 (arXiv:2104.04473), table 1: billions of parameters, heads, width, layers; V = 51,200, s = 2,048.
TABLE = [(1.7, 24, 2304, 24), (3.6, 32, 3072, 30), (7.5, 32, 4096, 36), (18.4, 48, 6144, 40), (39.1, 64, 8192, 48),
         (76.1, 80, 10240, 60), (145.6, 96, 12288, 80), (310.1, 128, 16384, 96), (529.6, 128, 20480, 105),
         (1008.0, 160, 25600, 128)]  # fmt: skip


def megatron(heads: int, width: int, layers: int, **more: bool) -> Model:
    return Model(layers=layers, width=width, heads=heads, vocabulary=51_200, context=2048, **more)


SMALL = Model(layers=4, width=64, heads=4, vocabulary=100, context=64, tied=False, split_vocabulary=False)


def test_imports_no_torch() -> None:
    code = "import sys; from course_utils.theory import cost; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("zero", "published"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_figure_1(zero: int, published: float) -> None:
    """ZeRO (arXiv:1910.02054), figure 1: 7.5 B parameters on 64 devices, GB a device."""
    assert sum(cost.states(7.5e9, dp=64, zero=zero).values()) / GB == pytest.approx(published, abs=0.05)


@pytest.mark.parametrize(("mp", "published"), [
    (1, (2, 7.6, 14.4, 128)), (2, (4, 15.2, 28.8, 256)), (4, (8, 30.4, 57.6, 512)), (8, (16, 60.8, 115.2, 1024)),
    (16, (32, 121.6, 230.4, 2048)),
])  # fmt: skip
def test_zero_table_2_largest_model(mp: int, published: tuple[float, ...]) -> None:
    """ZeRO, table 2: billions of parameters, by MP, on 32 GB devices; its rows are multiples of a rounded first one."""
    for zero, billions in enumerate(published):
        # 0.5 T, 1 T and 2 T in the paper are 512, 1,024 and 2,048 B.
        assert cost.largest(32 * GB, dp=64, mp=mp, zero=zero) / 1e9 == pytest.approx(billions, rel=0.006)


@pytest.mark.parametrize(("billions", "heads", "width", "layers"), TABLE)
def test_parameters_of_megatrons_table_1(billions: float, heads: int, width: int, layers: int) -> None:
    assert megatron(heads, width, layers).parameters / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize(("_", "heads", "width", "layers"), TABLE[::3])
def test_parameters_and_operations_are_megatrons_formulas(_: float, heads: int, width: int, layers: int) -> None:
    """Equations 2 and 3; ours count the last norm, too."""
    l, h, s, v, batch = layers, width, 2048, 51_200, 512  # noqa: E741
    model = megatron(heads, width, layers)
    assert model.parameters == pytest.approx(12 * l * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * l * h)), rel=1e-5)
    operations = 96 * batch * s * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h))
    assert model.operations(batch, recompute=True) == pytest.approx(operations, rel=1e-12)


@pytest.mark.parametrize(("row", "tokens", "devices", "tera", "days"), [
    ((96, 12288, 96), 300e9, 1024, 140, 34),
    ((160, 25600, 128), 450e9, 3072, 163, 84),
])  # fmt: skip
def test_megatrons_training_times(row: tuple[int, int, int], tokens: float, devices: int, tera: float, days: float):
    """Section 5.1: 175 B in 34 days, 1 T in 84; the time without a bubble, at the throughput they reached."""
    cluster = Cluster(memory=80 * GB, flops=tera * 1e12, bandwidth=250e9)
    plan = Plan(tp=8, pp=row[2] // 8, dp=devices // 8 // (row[2] // 8), recompute=True)
    batch = plan.dp * 96
    step = cost.estimate(megatron(*row), plan, cluster, batch=batch).seconds["compute"]
    scale = devices / plan.devices
    assert step / scale * tokens / (batch * 2048) / 86_400 == pytest.approx(days, rel=0.05)


# The same table's next columns: tensor and pipeline parts, GPUs, batch, TFLOP/s a GPU of the whole step.
RUNS = [(1, 1, 32, 512, 137), (2, 1, 64, 512, 138), (4, 1, 128, 512, 142), (8, 1, 256, 1024, 135),
        (8, 2, 512, 1536, 138), (8, 4, 1024, 1792, 140), (8, 8, 1536, 2304, 148), (8, 16, 1920, 2160, 155),
        (8, 35, 2520, 2520, 163), (8, 64, 3072, 3072, 163)]  # fmt: skip


@pytest.mark.parametrize(("sizes", "run", "signed"), [*zip(TABLE, RUNS, [
    -17, -12, -3, -6, -5, -2, 0, 4, 12, 10], strict=True)])  # fmt: skip
def test_steps_of_megatrons_table_1(sizes: tuple, run: tuple, signed: int) -> None:
    """Percent from the published step, with one rate of arithmetic for all ten; the micro-batch is our choice."""
    (_, *model), (tp, pp, devices, batch, tera) = sizes, run
    cluster = Cluster(memory=80 * GB, flops=180e12, bandwidth=250e9, node=8, far_bandwidth=25e9)
    split = {"dp": devices // tp // pp, "tp": tp, "pp": pp, "recompute": True}
    plans = [Plan(micro=micro, chunks=chunks, **split) for micro in (1, 2, 4, 8) for chunks in (1, 2)
             if batch % (split["dp"] * micro) == 0 and model[2] % (pp * chunks) == 0
             and (chunks == 1 or (pp > 1 and batch // split["dp"] // micro % pp == 0))]  # fmt: skip
    planned = min(cost.estimate(megatron(*model), plan, cluster, batch=batch).step for plan in plans)
    published = megatron(*model).operations(batch, recompute=True) / devices / (tera * 1e12)
    assert 100 * (planned / published - 1) == pytest.approx(signed, abs=1)


def test_pipeline_messages_and_held_micro_batches_are_the_schedules() -> None:
    """Of the busiest rank, and of the rank that holds most: the same lists that are drawn and run."""
    for p, m, v in [(2, 8, 1), (4, 8, 1), (4, 2, 1), (2, 8, 2), (4, 4, 2), (4, 8, 2), (8, 32, 3), (8, 8, 4)]:
        schedule = schedules.make("interleaved" if v > 1 else "1F1B", ranks=p, micro_batches=m, chunks=v)
        model = Model(layers=p * v, width=64, heads=4, vocabulary=100, context=64, tied=False)
        found = cost.estimate(model, Plan(pp=p, chunks=v), A100, batch=m)
        sends = max(sum(step.name == "send" for step in schedule[rank]) for rank in range(p))
        assert found.sent["pipeline"] == sends * 64 * 64 * 2  # context, width, bytes
        for rank in range(p - 1):  # the last one keeps its logits, too
            memory = estimate._memory(rank, model, Plan(pp=p, chunks=v), m, cost.MIXED)
            assert memory["activations"] == pytest.approx(schedule.held[rank] * v * model.activations(1, 1, 2))


def test_the_bubble_waits_for_tensor_messages_too() -> None:
    found = cost.estimate(megatron(32, 4096, 36), Plan(tp=8, pp=4), A100, batch=12).seconds
    assert found["tensor"] > 0
    assert found["bubble"] == pytest.approx((found["compute"] + found["tensor"]) * 3 / 12)


def test_bubble() -> None:
    """Megatron, section 2.2: (p-1)/m of the ideal time, and 1/v of it with v chunks."""
    for p, m, v in [(4, 1, 1), (4, 8, 1), (8, 32, 4)]:
        plan = Plan(pp=p, chunks=v)
        model = Model(layers=p * v, width=64, heads=4, vocabulary=100, context=64)
        found = cost.estimate(model, plan, A100, batch=m).seconds
        assert found["bubble"] / found["compute"] == pytest.approx((p - 1) / (m * v))
        assert cost.bubble(p, m, chunks=v) == pytest.approx((p - 1) / (m * v))


def test_ring() -> None:
    """A ring all-reduce is a reduce-scatter and an all-gather: 2(p-1)/p of the bytes (Patarasuk and Yuan 2009)."""
    for p in (1, 2, 4, 1000):
        assert cost.ring("all-reduce", 1e6, p) == pytest.approx(2 * (p - 1) / p * 1e6)
        halves = cost.ring("reduce-scatter", 1e6, p) + cost.ring("all-gather", 1e6, p)
        assert halves == pytest.approx(cost.ring("all-reduce", 1e6, p))
    with pytest.raises(CourseError, match="all-reduce, all-gather, reduce-scatter"):
        cost.ring("all-to-all", 1, 2)


def test_tensor_and_pipeline_volumes() -> None:
    """Megatron, section 3.2: 8bsh(t-1)/t numbers a layer and micro-batch, bsh between two stages, in each direction."""
    model, b, m = megatron(32, 4096, 36), 2, 16
    bsh = b * 2048 * 4096
    for t, p in [(2, 1), (8, 1), (8, 4), (1, 2)]:
        sent = cost.estimate(model, Plan(tp=t, pp=p, micro=b), A100, batch=b * m).sent
        assert sent["tensor"] / 2 == pytest.approx(8 * bsh * (t - 1) / t * 36 / p * m)
        # A stage in the middle sends both ways, the first and last one way.
        assert sent["pipeline"] / 2 == pytest.approx({1: 0, 2: 1, 4: 2}[p] * bsh * m)


def test_zero_volumes() -> None:
    """ZeRO, section 7: twice the parameters with stages 0 to 2, three times with stage 3, times (d-1)/d."""
    for zero, times in enumerate((2, 2, 2, 3)):
        sent = cost.estimate(SMALL, Plan(dp=64, zero=zero), A100, batch=64).sent["data"]
        assert sent / (2 * SMALL.parameters) == pytest.approx(times * 63 / 64)


def test_activations() -> None:
    """Korthikanti et al. 2022 (arXiv:2205.05198), equations 1 and 2."""
    a, h, s, b = 96, 12288, 2048, 1
    model = megatron(a, h, 96, fused=False)
    assert 5 * a * s / h == pytest.approx(80)  # their example, GPT-3
    for t in (1, 8):
        assert model.activations(b, t, 2) == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)))
    # Stage 0 of 1F1B holds p micro-batches of l/p layers: as much as all layers of one.
    full = cost.estimate(model, Plan(tp=8, pp=8), A100, batch=64).memory["activations"]
    assert full == pytest.approx(96 * model.activations(b, 8, 2))
    less = cost.estimate(model, Plan(tp=8, pp=8, recompute=True), A100, batch=64).memory["activations"]
    assert less == pytest.approx(96 * 2 * s * b * h + model.activations(b, 8, 2))


def test_parameters_are_those_of_the_real_model() -> None:
    from course_utils.lessons import models

    real = models.GPT(100, layers=4, width=64, heads=4, context=64)
    assert SMALL.parameters == sum(p.numel() for p in real.parameters())
    assert sum(SMALL.stage(i, 4, 1) for i in range(4)) == SMALL.parameters


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
    assert "Nearest that fits: ZeRO 1, all else equal: 41.4 GB a device, 6.84 s a step" in words
    assert error.value.nearest.fits
    assert error.value.nearest.plan == Plan(dp=64, zero=1)
    assert cost.nearest(megatron(32, 4096, 36), Plan(dp=64, zero=1), A100, batch=512).fits


def test_nothing_fits_names_how_many_devices_do() -> None:
    trillion = megatron(160, 25600, 128)
    with pytest.raises(cost.DoesNotFit, match=r"Nothing fits on 64 devices of 80 GB \(16.1 TB of states for 1.01e\+03 B"
                       r".*The fewest that do, at powers of two: 256 \("):  # fmt: skip
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
    (lambda: Plan(zero=4), "ZeRO has the stages 1, 2 and 3"),
    (lambda: Plan(dp=20_000), "takes 20,000 devices; the planner goes up to 16,384"),
    (lambda: Model(layers=2, width=10, heads=4, vocabulary=9, context=9), "the width is a multiple of the heads"),
    (lambda: cost.estimate(SMALL, Plan(tp=3), A100, batch=4), "3 does not divide the 4 heads"),
    (lambda: cost.estimate(SMALL, Plan(pp=3), A100, batch=4), "3 does not divide the 4 layers"),
    (lambda: cost.estimate(SMALL, Plan(dp=3), A100, batch=4), "3 does not divide the 4 sequences of the batch"),
    (lambda: cost.estimate(SMALL, Plan(pp=2, chunks=2), A100, batch=3), "by the 2; there are 3"),
    (lambda: cost.plans(SMALL, A100, devices=True, batch=3), "from 1 to 16,384"),
])  # fmt: skip
def test_bad_input_is_answered_in_words(make, words: str) -> None:
    with pytest.raises(CourseError, match=words):
        make()


def test_far_links_cost_more() -> None:
    near, far = (cost.estimate(SMALL, Plan(dp=dp), A100, batch=64) for dp in (8, 16))
    assert far.seconds["data"] > 2 * near.seconds["data"]
    latency = 2 * 7 * A100.latency  # a ring of 8 has 14 turns
    assert near.seconds["data"] == pytest.approx(latency + near.sent["data"] / A100.bandwidth)


def test_what_it_says() -> None:
    found = cost.estimate(SMALL, Plan(dp=4), A100, batch=16, precision=FLOAT32)
    assert repr(found).startswith("dp 4, tp 1, pp 1, ZeRO 0, micro-batch 1: ")
    assert "activations" in found._repr_html_()
    assert cost.size(31_400_000_000) == "31.4 GB"
    assert cost.size(999) == "999 B"
    assert cost.size(2_048e12) == "2,048 TB"
