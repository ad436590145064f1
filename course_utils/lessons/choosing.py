"""Which strategy when, on one page: the fastest plans that fit, by the planner; and what was published of such."""

from collections.abc import Mapping, Sequence

from .. import style
from ..pictures import Picture
from ..pictures.picture import blank, to_png
from ..planner import Cluster, Cost, Model, Plan, estimate, plans

# 8 A100 to a node, one link of 25 GB/s each to other nodes, NCCL's latencies, and one rate of arithmetic for all.
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
SIZES = {
    "1.7 B": (24, 2304, 24),
    "3.6 B": (32, 3072, 30),
    "7.5 B": (32, 4096, 36),
    "18 B": (48, 6144, 40),
    "39 B": (64, 8192, 48),
    "76 B": (80, 10240, 60),
    "146 B": (96, 12288, 80),
    "310 B": (128, 16384, 96),
    "530 B": (128, 20480, 105),
    "1 T": (160, 25600, 128),
}
MODELS = {
    name: Model(layers=layers, width=width, heads=heads, vocabulary=51_200, context=2048)
    for name, (heads, width, layers) in SIZES.items()
}
"""The models of Megatron-LM 2021 (arXiv:2104.04473), table 1, by their parameters."""

OLDER = {
    name: Model(
        layers=layers, width=width, heads=heads, vocabulary=51_200, context=2048, fused=False
    )
    for name, (heads, width, layers) in (
        SIZES | {"22 B": (64, 6144, 48), "175 B": (96, 12288, 96)}
    ).items()
}

# Of `OLDER`, whose attention writes its scores to memory: replicas, tensor parts, stages, micro-batch, chunks, batch;
# TFLOP/s a device of the whole step, all recomputed. Table 1 says no micro-batch and no chunks: the planner's best.
RUNS = {
    "Megatron-LM": (  # arXiv:2104.04473, table 1
        ("1.7 B", 32, 1, 1, 1, 1, 512, 137),
        ("3.6 B", 32, 2, 1, 8, 1, 512, 138),
        ("7.5 B", 32, 4, 1, 8, 1, 512, 142),
        ("18 B", 32, 8, 1, 8, 1, 1024, 135),
        ("39 B", 32, 8, 2, 2, 2, 1536, 138),
        ("76 B", 32, 8, 4, 1, 1, 1792, 140),
        ("146 B", 24, 8, 8, 1, 2, 2304, 148),
        ("310 B", 15, 8, 16, 1, 2, 2160, 155),
        ("530 B", 9, 8, 35, 1, 1, 2520, 163),
        ("1 T", 6, 8, 64, 1, 2, 3072, 163),
    ),
    "ZeRO-3": (  # the same, table 2
        ("175 B", 384, 1, 1, 4, 1, 1536, 144),
        ("175 B", 768, 1, 1, 2, 1, 1536, 88),
        ("175 B", 1536, 1, 1, 1, 1, 1536, 44),
        ("530 B", 640, 1, 1, 4, 1, 2560, 138),
        ("530 B", 1120, 1, 1, 2, 1, 2240, 98),
        ("530 B", 2240, 1, 1, 1, 1, 2240, 48),
    ),
    "Korthikanti": (  # arXiv:2205.05198, table 5: seconds
        ("22 B", 1, 8, 1, 4, 1, 4, 1.42),
        ("175 B", 1, 8, 8, 1, 3, 64, 18.13),
        ("530 B", 1, 8, 35, 1, 3, 280, 49.05),
        ("1 T", 1, 8, 64, 1, 1, 512, 94.42),
    ),
}


def published(source: str) -> list[tuple[str, int, float, float]]:
    """Model, devices, published and planned seconds of a step on `A100`, where no gradient hides behind backward."""
    found, zero = [], 3 * (source == "ZeRO-3")
    for name, dp, tp, pp, micro, chunks, batch, said in RUNS[source]:
        plan = Plan(dp=dp, tp=tp, pp=pp, zero=zero, micro=micro, chunks=chunks, recompute=True)
        cost, operations = (
            estimate(OLDER[name], plan, A100, batch=batch),
            OLDER[name].operations(batch, recompute=True),
        )
        took = said if source == "Korthikanti" else operations / plan.devices / (said * 1e12)
        found.append((name, plan.devices, took, cost.step + cost.hidden))
    return found


FAMILIES = {  # what a cell's colour says
    "one device": style.GREY,
    "replicas (ZeRO 0, 1)": style.RANK[0],
    "sharded (ZeRO 2, 3)": style.RANK[2],
    "with tensor parts": style.RANK[4],
    "with stages": style.RANK[3],
    "with both": style.RANK[1],
}
TIMES = " \N{MULTIPLICATION SIGN} "


def family(plan: Plan) -> str:
    """What kind of plan it is, one of `FAMILIES`."""
    alone, replicas, sharded, tensor, stages, both = FAMILIES
    if plan.tp > 1 or plan.pp > 1:
        return both if plan.tp > 1 and plan.pp > 1 else tensor if plan.tp > 1 else stages
    return alone if plan.devices == 1 else replicas if plan.zero < 2 else sharded


def rivals(costs: Sequence[Cost], error: float) -> list[str]:
    """The kinds of plan whose fastest takes at most `error` longer than the fastest of all that fit, that one first."""
    return [
        *dict.fromkeys(
            family(one.plan)
            for one in costs
            if one.fits and one.step <= (1 + error) * costs[0].step
        )
    ]


def page(
    models: Mapping[str, Model],
    devices: Sequence[int],
    cluster: Cluster,
    *,
    batch: int,
    title: str,
    error: float = 0.12,
) -> Picture:
    """A PNG of the fastest plans that fit, striped in the colour of another kind that is within the planner's error."""
    from matplotlib import rc_context
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    every = [
        [plans(model, cluster, devices=count, batch=batch) for count in devices]
        for model in models.values()
    ]
    grid = [[next((cost for cost in costs if cost.fits), None) for costs in row] for row in every]
    near = [[rivals(costs, error) for costs in row] for row in every]
    tints = {
        kind: tuple(0.45 + 0.55 * part for part in to_rgb(color))
        for kind, color in FAMILIES.items()
    }
    width, height = style.WIDTH, 46 * len(grid) + 106  # px
    figure = blank(width, height)
    ax = figure.add_axes((64 / width, 66 / height, 1 - 70 / width, 1 - 86 / height))
    ax.set_axis_off()
    table = ax.table(
        [[_text(found) for found in row] for row in grid],
        bbox=(0, 0, 1, 1),
        cellLoc="center",
        cellColours=[[tints[found[0]] if found else "none" for found in row] for row in near],
        rowLabels=[*models],
        colLabels=[f"{count:,}" for count in devices],
        rowColours=["none"] * len(grid),
        colColours=["none"] * len(devices),
    )
    table.auto_set_font_size(False)
    for (row, column), cell in table.get_celld().items():
        inside = row > 0 <= column
        black = inside and grid[row - 1][column]  # on a tint: the same on a light and a dark page
        cell.set(edgecolor=style.GREY if inside else "none", linewidth=0.3)
        if inside and len(near[row - 1][column]) > 1:
            cell.set(edgecolor=tints[near[row - 1][column][1]], hatch="//")
        cell.set_text_props(fontsize=7.6 if inside else 9, color="black" if black else style.GREY)
    figure.text(
        8 / width,
        1 - 15 / height,
        title,
        fontsize=9.7,
        fontweight="bold",
        color=style.GREY,
        parse_math=False,
    )
    note = (
        f"{TIMES.join(('Replicas', 'tensor parts', 'stages'))}; Z: ZeRO stage, R: recomputed; time of a step. "
        f"Stripes: this other kind is within {error:.0%}."
    )
    figure.text(8 / width, 8 / height, note, fontsize=8, color=style.GREY)
    shown = [kind for kind in FAMILIES if any(kind in found[:2] for row in near for found in row)]
    figure.legend(
        [Patch(facecolor=tints[kind]) for kind in shown],
        shown,
        ncols=len(shown),
        frameon=False,
        fontsize=8,
        loc="lower left",
        bbox_to_anchor=(0, 18 / height),
        labelcolor=style.GREY,
        handlelength=1.2,
        columnspacing=1.2,
    )
    said = [
        f"{name}: "
        + "; ".join(
            f"on {n:,} {_text(row[i], spoken=True)}"
            + "".join(f", {kind} within {error:.0%}" for kind in found[1:2])
            for i, (n, found) in enumerate(zip(devices, beside, strict=True))
        )
        for name, row, beside in zip(models, grid, near, strict=True)
    ]
    with rc_context({"hatch.linewidth": 5}):
        png = to_png(figure)
    return Picture("", f"{title}. Fastest plans that fit. {'. '.join(said)}.", png=png)


def _text(found: Cost | None, *, spoken: bool = False) -> str:
    if found is None:
        return "does not fit"
    plan, time = found.plan, style.duration(found.step)
    short = (
        f"{plan.dp}{TIMES}{plan.tp}{TIMES}{plan.pp}\nZ{plan.zero}{' R' * plan.recompute} · {time}"
    )
    return f"{plan} in {time}" if spoken else short
