"""The planner agrees with what was published, and says in words what does not fit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from course_utils import CourseError
from course_utils.theory import cost, estimate, schedules
from course_utils.theory.cost import Cluster, Model, Plan

GB = 1e9
A100 = Cluster(memory=80 * GB, flops=140e12, bandwidth=250e9, node=8, far_bandwidth=25e9)
# Megatron-LM 2021 (arXiv:2104.04473), table 1: billions of parameters, heads, width, layers; V = 51,200, s = 2,048.
TABLE = [(1.7, 24, 2304, 24), (3.6, 32, 3072, 30), (7.5, 32, 4096, 36), (18.4, 48, 6144, 40), (39.1, 64, 8192, 48),
         (76.1, 80, 10240, 60), (145.6, 96, 12288, 80), (310.1, 128, 16384, 96), (529.6, 128, 20480, 105),
         (1008.0, 160, 25600, 128)]


def megatron(heads: int, width: int, layers: int, **more: int) -> Model:
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
])
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
])
def test_megatrons_training_times(row: tuple[int, int, int], tokens: float, devices: int, tera: float, days: float):
    """Section 5.1: 175 B in 34 days, 1 T in 84; the time without a bubble, at the throughput they reached."""
    cluster = Cluster(memory=80 * GB, flops=tera * 1e12, bandwidth=250e9)
    plan = Plan(tp=8, pp=row[2] // 8, dp=devices // 8 // (row[2] // 8), recompute=True)
    batch = plan.dp * 96
    step = cost.estimate(megatron(*row), plan, cluster, batch=batch).seconds["compute"]
    scale = devices / plan.devices
    assert step / scale * tokens / (batch * 2048) / 86_400 == pytest.approx(days, rel=0.05)


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


SYNC = replace(A100, overlap=False)


def test_far_links_cost_more() -> None:
    """With tensor parts in the node, replicas are one to a node, and each message between them is far."""
    far = replace(SYNC, far_latency=50e-6)
    near, apart = (cost.estimate(SMALL, Plan(dp=2, tp=tp), cluster, batch=64) for tp, cluster in ((1, far), (4, far)))
    assert near.seconds["data"] == pytest.approx(2 * 5e-6 + near.sent["data"] / 250e9)
    node = replace(far, node=4)
    apart = cost.estimate(SMALL, Plan(dp=2, tp=4), node, batch=64)
    assert apart.seconds["data"] == pytest.approx(2 * 50e-6 + apart.sent["data"] / 25e9)


def test_a_ring_uses_the_links_of_all_its_devices_in_a_node() -> None:
    """NCCL: with 8 devices in each of 2 nodes, 1 of 15 turns is far, and 8 links carry the ring."""
    cluster = replace(A100, latency=3e-6, far_latency=18e-6)
    turn, byte = cluster.ring(16)
    assert turn == pytest.approx((14 * 3e-6 + 18e-6) / 15)
    assert byte == pytest.approx(1 / (8 * 25e9))
    assert cluster.ring(8) == (3e-6, 1 / 250e9)
    assert cluster.ring(16, apart=4)[1] == pytest.approx(1 / (2 * 25e9))
    assert cluster.ring(4, apart=8) == pytest.approx((18e-6, 1 / 25e9))
    assert replace(cluster, far_bandwidth=100e9).ring(16)[1] == 1 / 250e9  # no faster than inside a node


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_what_of_data_parallelism_hides(zero: int) -> None:
    """All but one layer's share, as far as the arithmetic lasts: of the last micro-batch, or of all of them."""
    plan, micros = Plan(dp=64, zero=zero), 4
    for bandwidth in (1e6, 1e9, 1e12):
        cluster = Cluster(memory=80 * GB, flops=1e12, bandwidth=bandwidth, latency=0)
        bare, hidden = (cost.estimate(SMALL, plan, replace(cluster, overlap=overlap), batch=64 * micros)
                        for overlap in (False, True))
        takes, room = bare.seconds["data"], bare.seconds["compute"] / (1 if zero >= 2 else micros)
        assert hidden.seconds["data"] == pytest.approx(max(takes / SMALL.layers, takes - room))
        assert hidden.hidden == pytest.approx(takes - hidden.seconds["data"])
        assert bare.hidden == 0
        assert hidden.sent == bare.sent


def test_split_sequences() -> None:
    """Korthikanti et al., table 2, its first five rows; and no byte more on the links (section 4.2.2)."""
    a, h, s, b, t = 96, 12288, 2048, 1, 8
    model, whole = megatron(a, h, 96, fused=False), s * b * h
    scores = 5 * a * s / h
    for options, numbers in [
        ({"tp": 1}, 34 + scores),
        ({"tp": t}, 10 + 24 / t + scores / t),
        ({"tp": t, "sequence": True}, (34 + scores) / t),
        ({"tp": t, "recompute": "attention"}, 10 + 24 / t),
        ({"tp": t, "sequence": True, "recompute": "attention"}, 34 / t),
    ]:
        assert model.activations(b, each=2, **options) == pytest.approx(whole * numbers)
    plain, split = (cost.estimate(model, Plan(tp=t, pp=4, sequence=on), A100, batch=8) for on in (False, True))
    assert split.sent["tensor"] == plain.sent["tensor"]
    assert split.sent["pipeline"] == pytest.approx(plain.sent["pipeline"] / t)
    more = model.operations(8, recompute="attention") - model.operations(8)
    assert more == 8 * 96 * (2 * s**2 * h + 2 * s**2 * h)  # appendix A: QK^T and attention over values, forward


def test_mfu_is_the_papers() -> None:
    """Korthikanti et al., table 5: 41.5, 51.4, 56.0 and 56.3 % of an A100's 312 TFLOP/s."""
    for sizes, devices, batch, seconds, published in [
        ((64, 6144, 48), 8, 4, 1.10, 41.5), ((96, 12288, 96), 64, 64, 13.75, 51.4),
        ((128, 20480, 105), 280, 280, 37.83, 56.0), ((160, 25600, 128), 512, 512, 71.49, 56.3),
    ]:
        share = cost.mfu(megatron(*sizes), batch=batch, seconds=seconds, devices=devices, peak=312e12)
        assert 100 * share == pytest.approx(published, abs=0.2)


def test_context() -> None:
    """A ring of c ranks: keys and values pass c-1 of c parts of 2bsh, once forward and twice backward."""
    model = megatron(32, 4096, 36)
    whole, split = (cost.estimate(model, Plan(context=c), SYNC, batch=2) for c in (1, 4))
    assert split.plan.devices == 4
    assert split.sent["context"] == pytest.approx(3 * 36 * 2 * (2 * 2048 * 4096 * 3 / 4) * 2)
    assert "context" not in whole.sent
    assert split.memory["activations"] == pytest.approx(whole.memory["activations"] / 4)
    assert split.seconds["compute"] == pytest.approx(whole.seconds["compute"] / 4)
    # Ranks of a sequence hold all weights: they reduce gradients as replicas do, and ZeRO shares out over them.
    replicas = cost.estimate(model, Plan(dp=4), SYNC, batch=4)
    assert split.sent["data"] == replicas.sent["data"]
    sharded = cost.estimate(model, Plan(context=4, zero=3), SYNC, batch=2)
    assert sharded.memory["optimizer"] == pytest.approx(whole.memory["optimizer"] / 4)
    hidden = cost.estimate(model, Plan(context=4), A100, batch=2)
    assert hidden.seconds["context"] < split.seconds["context"]
    assert any(c.plan.context == 2 for c in cost.plans(model, A100, devices=2, batch=1, context=2))
    assert not cost.plans(model, A100, devices=5, batch=1)


def test_experts() -> None:
    """Four all-to-alls a layer of the routed tokens, (e-1)/e of which go to other ranks; experts are shared out."""
    model = megatron(32, 4096, 36, experts=8, chosen=2)
    dense = megatron(32, 4096, 36)
    mlp = 8 * 4096**2 + 5 * 4096
    assert model.parameters - dense.parameters == pytest.approx(36 * (7 * mlp + 8 * 4096))
    assert model.operations(1) - dense.operations(1) == pytest.approx(3 * 2048 * 36 * 16 * 4096**2)
    alone, shared = (cost.estimate(model, Plan(dp=8, experts=e), SYNC, batch=8) for e in (1, 8))
    assert shared.sent["experts"] == pytest.approx(4 * 36 * 2 * 2048 * 4096 * 2 * 7 / 8)
    assert alone.memory["parameters"] - shared.memory["parameters"] == pytest.approx(2 * 36 * 7 * mlp)
    assert shared.sent["data"] < alone.sent["data"]  # each expert has one copy, and nobody to agree with
    assert shared.plan.devices == 8
    assert {c.plan.experts for c in cost.plans(model, A100, devices=8, batch=8) if c.plan.dp == 8} == {1, 2, 4, 8}
