"""Which strategy when, on one page: for each model and number of devices the fastest plan that fits, by the planner."""

from collections.abc import Mapping, Sequence

from .. import style
from ..pictures import Picture
from ..pictures.picture import blank, to_png
from ..planner import Cluster, Cost, Model, Plan, plans

SIZES = {"1.7 B": (24, 2304, 24), "7.5 B": (32, 4096, 36), "18 B": (48, 6144, 40), "39 B": (64, 8192, 48),
         "76 B": (80, 10240, 60), "146 B": (96, 12288, 80), "310 B": (128, 16384, 96), "1 T": (160, 25600, 128)}
MODELS = {name: Model(layers=layers, width=width, heads=heads, vocabulary=51_200, context=2048)
          for name, (heads, width, layers) in SIZES.items()}
"""The models of Megatron-LM 2021 (arXiv:2104.04473), table 1, by their parameters."""

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


def page(models: Mapping[str, Model], devices: Sequence[int], cluster: Cluster, *, batch: int, title: str) -> Picture:
    """A table of the fastest plans that fit: a row a model, a column a number of devices; as a PNG."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    every = [[plans(model, cluster, devices=count, batch=batch) for count in devices] for model in models.values()]
    grid = [[next((cost for cost in costs if cost.fits), None) for costs in row] for row in every]
    kinds = [[family(found.plan) if found else "" for found in row] for row in grid]
    tints = {kind: tuple(0.45 + 0.55 * part for part in to_rgb(color)) for kind, color in FAMILIES.items()}
    width, height = style.WIDTH, 46 * len(grid) + 106  # px
    figure = blank(width, height)
    ax = figure.add_axes((64 / width, 66 / height, 1 - 70 / width, 1 - 86 / height))
    ax.set_axis_off()
    table = ax.table([[_text(found) for found in row] for row in grid], bbox=(0, 0, 1, 1), cellLoc="center",
                     cellColours=[[tints.get(kind, "none") for kind in row] for row in kinds],
                     rowLabels=[*models], colLabels=[f"{count:,}" for count in devices],
                     rowColours=["none"] * len(grid), colColours=["none"] * len(devices))
    table.auto_set_font_size(False)
    for (row, column), cell in table.get_celld().items():
        inside = row > 0 <= column
        black = inside and grid[row - 1][column]  # on a tint: the same on a light and a dark page
        cell.set(edgecolor=style.GREY if inside else "none", linewidth=0.3)
        cell.set_text_props(fontsize=7.6 if inside else 9, color="black" if black else style.GREY)
    figure.text(8 / width, 1 - 15 / height, title, fontsize=9.7, fontweight="bold", color=style.GREY, parse_math=False)
    note = (f"Parameters by devices: {TIMES.join(('replicas', 'tensor parts', 'stages'))}; Z: ZeRO stage, R: "
            "activations computed again; time of a step.")
    figure.text(8 / width, 8 / height, note, fontsize=8, color=style.GREY)
    shown = [kind for kind in FAMILIES if any(kind in row for row in kinds)]
    figure.legend([Patch(facecolor=tints[kind]) for kind in shown], shown, ncols=len(shown), frameon=False, fontsize=8,
                  loc="lower left", bbox_to_anchor=(0, 18 / height), labelcolor=style.GREY, handlelength=1.2,
                  columnspacing=1.2)
    said = [f"{name}: " + "; ".join(f"on {n:,} {_text(row[i], spoken=True)}" for i, n in enumerate(devices))
            for name, row in zip(models, grid, strict=True)]
    return Picture("", f"{title}. Fastest plans that fit. {'. '.join(said)}.", png=to_png(figure))


def _text(found: Cost | None, *, spoken: bool = False) -> str:
    if found is None:
        return "does not fit"
    plan, time = found.plan, style.duration(found.step)
    short = f"{plan.dp}{TIMES}{plan.tp}{TIMES}{plan.pp}\nZ{plan.zero}{' R' * plan.recompute} · {time}"
    return f"{plan} in {time}" if spoken else short
