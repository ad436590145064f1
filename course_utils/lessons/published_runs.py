"""Published runs of large models on A100s, to hold the planner's seconds against.

Megatron-LM   Narayanan et al. 2021, arXiv:2104.04473, table 1; the models are its, too
ZeRO-3        the same, table 2
Korthikanti   Korthikanti et al. 2022, arXiv:2205.05198, table 5, and section 6.3: eight replicas
FSDP          Zhao et al. 2023, arXiv:2304.11277, section 5.4: on links of 2 Tb/s a node
"""

from dataclasses import replace
from typing import Any

from ..planner import Cluster, Model, Plan, estimate

# 8 A100 to a node, one link of 25 GB/s each to other nodes, NCCL's latencies, and one rate of
# arithmetic for all.
A100 = Cluster(
    memory=80e9,
    flops=200e12,
    memory_bandwidth=2e12,
    bandwidth=250e9,
    latency=3.4e-6,
    node=8,
    far_bandwidth=25e9,
    far_latency=14e-6,
)
PEAK = 312e12  # FLOP/s of an A100's 16-bit matrix products, as its data sheet says

SIZES = """
model   heads  width  layers
1.7 B   24      2304      24
3.6 B   32      3072      30
7.5 B   32      4096      36
18 B    48      6144      40
39 B    64      8192      48
76 B    80     10240      60
146 B   96     12288      80
310 B   128    16384      96
530 B   128    20480     105
1 T     160    25600     128
"""
MORE_SIZES = """
model   heads  width  layers
22 B    64      6144      48
175 B   96     12288      96
"""

# All recomputed. Table 1 of Megatron-LM says no micro-batch and no chunks: the planner's best.
# Korthikanti gives seconds a step, the others TFLOP/s a device of the whole step.
RUNS = {
    "Megatron-LM": """
model   dp    tp  pp  micro  chunks  batch  TFLOP/s
1.7 B   32     1   1  1      1         512      137
3.6 B   32     2   1  8      1         512      138
7.5 B   32     4   1  8      1         512      142
18 B    32     8   1  8      1        1024      135
39 B    32     8   2  2      2        1536      138
76 B    32     8   4  1      1        1792      140
146 B   24     8   8  1      2        2304      148
310 B   15     8  16  1      2        2160      155
530 B   9      8  35  1      1        2520      163
1 T     6      8  64  1      2        3072      163
""",
    "ZeRO-3": """
model   dp    tp  pp  micro  chunks  batch  TFLOP/s
175 B   384    1   1  4      1        1536      144
175 B   768    1   1  2      1        1536       88
175 B   1536   1   1  1      1        1536       44
530 B   640    1   1  4      1        2560      138
530 B   1120   1   1  2      1        2240       98
530 B   2240   1   1  1      1        2240       48
""",
    "Korthikanti": """
model   dp    tp  pp  micro  chunks  batch  seconds
22 B    1      8   1  4      1           4     1.42
175 B   1      8   8  1      3          64    18.13
530 B   1      8  35  1      3         280    49.05
1 T     1      8  64  1      1         512    94.42
""",
    "FSDP": """
model   dp    tp  pp  micro  chunks  batch  TFLOP/s
175 B   512    1   1  1      1         512      173
175 B   512    1   1  2      1        1024      186
""",
}


def _rows(table: str) -> list[tuple[str, dict[str, Any]]]:
    """The model of each row, "1.7 B", and its numbers by their heads."""
    head, *lines = table.strip().splitlines()
    rows = []
    for line in lines:
        number, unit, *numbers = line.split()
        values = [int(text) if text.isdigit() else float(text) for text in numbers]
        rows.append((f"{number} {unit}", dict(zip(head.split()[1:], values, strict=True))))
    return rows


def _models(table: str, *, fused: bool) -> dict[str, Model]:
    return {
        name: Model(vocabulary=51_200, context=2048, fused=fused, **sizes)
        for name, sizes in _rows(table)
    }


MODELS = _models(SIZES, fused=True)
# As they were run, when attention wrote its scores to memory.
OLDER = _models(SIZES, fused=False) | _models(MORE_SIZES, fused=False)


def seconds(source: str) -> list[tuple[str, int, float, float, float]]:
    """Model, devices, published seconds of a step, planned ones, and planned if nothing hides."""
    cluster = replace(A100, far_bandwidth=31.25e9) if source == "FSDP" else A100
    found = []
    for name, sizes in _rows(RUNS[source]):
        _, published = sizes.popitem()
        batch = sizes.pop("batch")
        zero = 3 if source in ("ZeRO-3", "FSDP") else 0
        plan = Plan(**sizes, zero=zero, recompute=True)

        cost = estimate(OLDER[name], plan, cluster, batch=batch)
        if source != "Korthikanti":
            operations = OLDER[name].operations(batch, recompute=True)
            published = operations / plan.devices / (published * 1e12)
        found.append((name, plan.devices, published, cost.step, cost.step + cost.hidden))
    return found


def of_replicas() -> tuple[str, int, float, float, float]:
    """A row like those of `seconds`: what eight replicas take longer than one (section 6.3)."""
    one, eight = (
        estimate(OLDER["530 B"], Plan(dp=dp, tp=8, pp=35, recompute=True), A100, batch=280 * dp)
        for dp in (1, 8)
    )
    longer = eight.step - one.step
    return "530 B", eight.plan.devices, 39.15 - 37.83, longer, longer + eight.hidden
