"""The planner against papers: what was published, what it plans, and the signed error. Nothing is measured here.

One cluster for all: 8 A100 to a node, one link of 25 GB/s each to other nodes, NCCL's latencies (src/graph/tuning.cc),
and one rate of arithmetic. That rate is no fit to the rows below: it is what Korthikanti et al.'s table 4 leaves for
one layer without its all-reduces, see `layer_rate`. Both Megatron papers overlap no gradient with backward; FSDP does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from bench import show, table, targets

from course_utils.theory import cost
from course_utils.theory.cost import Cluster, Model, Plan

PEAK = 312e12  # operations a second, an A100's sheet
A100 = Cluster(memory=80e9, flops=175e12, bandwidth=250e9, latency=3.4e-6, node=8, far_bandwidth=25e9,
               far_latency=14e-6, overlap=False)
ROCE = replace(A100, far_bandwidth=31.25e9, overlap=True)  # 2 Tb/s a node

# Megatron-LM 2021 (arXiv:2104.04473), table 1: billions of parameters, heads, width, layers; tensor and pipeline parts,
# GPUs, batch, TFLOP/s a GPU of the whole step, recomputation counted.
MEGATRON_1 = (
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137), (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142), (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138), (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148), (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163), (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163),
)
GPT3, MTNLG = (96, 12288, 96), (128, 20480, 105)  # heads, width, layers
# Its table 2: name, model, pipeline parts, batch, GPUs, micro-batch, TFLOP/s. Tensor parts are 8; without pipeline
# parts it is ZeRO-3 alone.
MEGATRON_2 = (
    ("175 B", GPT3, 12, 1536, 384, 1, 153), ("175 B", GPT3, 12, 1536, 768, 1, 149),
    ("175 B", GPT3, 12, 1536, 1536, 1, 141), ("530 B", MTNLG, 35, 2240, 560, 1, 171),
    ("530 B", MTNLG, 35, 2240, 1120, 1, 167), ("530 B", MTNLG, 35, 2240, 2240, 1, 159),
    ("175 B", GPT3, 0, 1536, 384, 4, 144), ("175 B", GPT3, 0, 1536, 768, 2, 88),
    ("175 B", GPT3, 0, 1536, 1536, 1, 44), ("530 B", MTNLG, 0, 2560, 640, 4, 138),
    ("530 B", MTNLG, 0, 2240, 1120, 2, 98), ("530 B", MTNLG, 0, 2240, 2240, 1, 48),
)
# Korthikanti et al. 2022 (arXiv:2205.05198), tables 3 and 5: name, model, pipeline parts, chunks, batch, micro-batch;
# seconds with everything recomputed, and with attention recomputed and the sequence split.
MEMORY_5 = (
    ("22 B", (64, 6144, 48), 1, 1, 4, 4, 1.42, 1.10), ("175 B", GPT3, 8, 3, 64, 1, 18.13, 13.75),
    ("530 B", MTNLG, 35, 3, 280, 1, 49.05, 37.83), ("1 T", (160, 25600, 128), 64, 1, 512, 1, 94.42, 71.49),
)
FSDP = ((1, 173), (2, 186))  # Zhao et al. 2023 (arXiv:2304.11277), section 5.4: sequences a GPU, TFLOP/s; 512 GPUs
# ZeRO (arXiv:1910.02054), table 1: GB of states a device with stages 1, 2 and 3 for 7.5 B, 128 B and 1 T parameters.
ZERO_1 = {
    1: (120, 120, 120, 2048, 2048, 2048, 16000, 16000, 16000), 4: (52.5, 41.3, 30, 896, 704, 512, 7000, 5500, 4000),
    16: (35.6, 21.6, 7.5, 608, 368, 128, 4750, 2875, 1000), 64: (31.4, 16.6, 1.88, 536, 284, 32, 4187, 2218, 250),
    256: (30.4, 15.4, 0.47, 518, 263, 8, 4046, 2054, 62.5), 1024: (30.1, 15.1, 0.12, 513, 257, 2, 4011, 2013, 15.6),
}


class Row(NamedTuple):
    source: str
    what: str
    planned: float  # seconds a step
    published: float

    @property
    def error(self) -> float:
        return self.planned / self.published - 1


def gpt(heads: int, width: int, layers: int, **more: bool) -> Model:
    return Model(layers=layers, width=width, heads=heads, vocabulary=51_200, context=2048, **more)


def layer_rate() -> float:
    """Operations a second of one layer of the 22 B model, in 19.6 ms with four all-reduces (Korthikanti, table 4)."""
    (_, sizes, *_), micro, tp, layers = MEMORY_5[0], 4, 8, 1
    one = replace(gpt(*sizes), layers=layers, vocabulary=1)
    turn, byte = A100.ring(tp)
    reduce = 2 * (tp - 1) * turn + cost.ring("all-reduce", 2 * one.context * micro * one.width, tp) * byte
    return one.operations(micro) / tp / (19.6e-3 - 4 * reduce)


def fastest(
    model: Model, batch: int, cluster: Cluster = A100, *, micros: tuple = (1,), chunks: tuple = (1,), **plan: int
) -> float:
    """Seconds of the best of the plans that a paper leaves open."""

    def all_of_them() -> Iterator[float]:
        for micro in micros:
            for parts in chunks:
                some = Plan(micro=micro, chunks=parts, **plan)
                count, rest = divmod(batch, some.dp * micro)
                if rest or model.layers % (some.pp * parts) or (parts > 1 and (some.pp == 1 or count % some.pp)):
                    continue
                yield cost.estimate(model, some, cluster, batch=batch).step

    return min(all_of_them())


def seconds(model: Model, batch: int, devices: int, tera: float) -> float:
    return model.operations(batch, recompute=True) / devices / (tera * 1e12)


def rows() -> list[Row]:
    """Every published step and what the planner says."""
    found = []
    for billions, *sizes, tp, pp, devices, batch, tera in MEGATRON_1:
        model, dp = gpt(*sizes), devices // tp // pp
        planned = fastest(model, batch, micros=(1, 2, 4, 8), chunks=(1, 2), tp=tp, pp=pp, dp=dp, recompute=True)
        what = f"{billions:,} B on {devices:,}: dp {dp}, tp {tp}, pp {pp}"
        found.append(Row("Megatron-LM, table 1", what, planned, seconds(model, batch, devices, tera)))
    for name, sizes, pp, batch, devices, micro, tera in MEGATRON_2:
        model = gpt(*sizes)
        split = {"tp": 8, "pp": pp, "dp": devices // 8 // pp} if pp else {"dp": devices, "zero": 3}
        planned = fastest(model, batch, micros=(micro,), chunks=(1, 2, 4) if pp else (1,), recompute=True, **split)
        source = "Megatron-LM, table 2" + ("" if pp else ", ZeRO-3")
        found.append(Row(source, f"{name} on {devices:,}", planned, seconds(model, batch, devices, tera)))
    for name, sizes, pp, chunks, batch, micro, full, less in MEMORY_5:
        model = gpt(*sizes, fused=False)
        split = {"tp": 8, "pp": pp, "micros": (micro,), "chunks": (1, chunks)}
        ways = (("all recomputed", {"recompute": True}, full),
                ("sequence split, attention recomputed", {"recompute": "attention", "sequence": True}, less))
        found += [Row("Korthikanti et al., table 5", f"{name}, {way}", fastest(model, batch, **split, **plan), took)
                  for way, plan, took in ways]
    one, eight = (fastest(model, 280 * dp, tp=8, pp=35, dp=dp, recompute="attention", sequence=True)
                  for model in [gpt(*MTNLG, fused=False)] for dp in (1, 8))
    found.append(Row("Korthikanti et al., section 6.3", "530 B: what 8 replicas add", eight - one, 39.15 - 37.83))
    for micro, tera in FSDP:
        batch, model = 512 * micro, gpt(*GPT3)
        planned = fastest(model, batch, ROCE, micros=(micro,), dp=512, zero=3, recompute=True)
        what = f"175 B on 512, {micro} a GPU"
        found.append(Row("PyTorch FSDP, section 5.4", what, planned, seconds(model, batch, 512, tera)))
    return found


def zero_entries() -> list[tuple[float, float]]:
    """(planned, published) GB of ZeRO's table 1, all 54."""
    kinds = [(count, zero) for count in (7.5e9, 128e9, 1e12) for zero in (1, 2, 3)]
    return [(sum(cost.states(count, dp=dp, zero=zero).values()) / 1e9, published)
            for dp, entries in ZERO_1.items()
            for (count, zero), published in zip(kinds, entries, strict=True)]


def equal(planned: float, published: float) -> bool:
    """To the paper's digits, of which it rounds some and cuts some off."""
    digits = len(str(published).partition(".")[2])
    return abs(planned - published) < 1.0001 * 10**-digits


BIG, SMALL, GREAT, WIDE = gpt(128, 20480, 32), gpt(32, 3840, 32), gpt(*GPT3), gpt(128, 15360, 32)
DEGREES = (2, 4, 8, 16, 32)


def peak(batch: int) -> int:
    """Tensor parts of the fastest plan for 162 B parameters on 64."""
    return min(DEGREES, key=lambda tp: fastest(BIG, batch, tp=tp, pp=64 // tp, recompute=True))


def rises(plan: Callable[[int], dict], *batches: int) -> bool:
    """Whether the step of 5.9 B on 64 takes longer with each degree, for each batch."""
    steps = [[fastest(SMALL, batch, recompute=True, **plan(n)) for n in DEGREES] for batch in batches]
    return all(each == sorted(each) for each in steps)


def gain(batch: int) -> float:
    """What two chunks save of a step, 175 B on 96."""
    one, two = (fastest(GREAT, batch, chunks=(n,), tp=8, pp=12, recompute=True) for n in (1, 2))
    return one / two - 1


def orders() -> list[tuple[str, str, bool]]:
    """What the figures of Megatron-LM show, and whether the planner says the same."""
    micro = min((1, 2, 4, 8), key=lambda n: fastest(WIDE, 512, micros=(n,), tp=8, pp=8, recompute=True))
    again = 1 - fastest(GREAT, 12, tp=8, pp=12) / fastest(GREAT, 12, tp=8, pp=12, recompute=True)
    pipes = rises(lambda n: {"pp": n, "dp": 64 // n}, 32, 512)
    tensors = rises(lambda n: {"tp": n, "dp": 64 // n}, 128, 512)
    return [
        ("12", "two chunks are faster than one, and less so for larger batches", gain(12) > gain(60) > 0),
        ("13", "162 B on 64, batch 128: tp 8, pp 8 is fastest", peak(128) == 8),
        ("13", "the same with batch 32", peak(32) == 8),
        ("14", "5.9 B on 64, batches 32 and 512: with each doubling of pp instead of dp, slower", pipes),
        ("15", "5.9 B on 64, batches 128 and 512: with each doubling of tp instead of dp, slower", tensors),
        ("16", "91 B, tp 8, pp 8: micro-batch 2 is fastest", micro == 2),
        ("17", "at an equal batch, recomputation costs up to 33 % of the throughput", 0.2 < again <= 0.33),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the same: it takes a second")
    parser.parse_args()
    found, entries = rows(), zero_entries()
    sources = list(dict.fromkeys(row.source for row in found))
    errors = {source: [row.error for row in found if row.source == source] for source in sources}
    show(
        f"Seconds a step, on A100s with {A100.flops / 1e12:.0f} TFLOP/s of arithmetic, {A100.flops / PEAK:.0%} of the "
        f"sheet; one layer of Korthikanti's table 4 ran at {layer_rate() / 1e12:.0f}. Plus: planned too long.",
        table(["source", "run", "published, s", "planned, s", "error"],
              [(r.source, r.what, f"{r.published:.3g}", f"{r.planned:.3g}", f"{r.error:+.0%}") for r in found]),
        table(["source", "runs", "errors from", "to"],
              [(name, len(each), f"{min(each):+.0%}", f"{max(each):+.0%}") for name, each in errors.items()]),
        table(["figure of Megatron-LM", "what it shows", "the planner"],
              [(number, what, "the same" if same else "**not so**") for number, what, same in orders()]),
        targets(("ZeRO, table 1: entries of 54 that differ", sum(not equal(*each) for each in entries), 0, "entries")),
    )


if __name__ == "__main__":
    main()
