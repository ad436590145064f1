"""Which strategy when, on one page: for each model and number of devices the fastest plan that fits, by the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

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
ROW, LEFT, TOP, FOOT = 46, 58, 60, 66  # px: a row's height, and what is left beside, above and below the cells
TIMES = " \N{MULTIPLICATION SIGN} "


def family(plan: Plan) -> str:
    """What kind of plan it is, one of `FAMILIES`."""
    alone, replicas, sharded, tensor, stages, both = FAMILIES
    if plan.tp > 1 or plan.pp > 1:
        return both if plan.tp > 1 and plan.pp > 1 else tensor if plan.tp > 1 else stages
    return alone if plan.devices == 1 else replicas if plan.zero < 2 else sharded


def page(models: Mapping[str, Model], devices: Sequence[int], cluster: Cluster, *, batch: int, title: str) -> Picture:
    """A table of the fastest plans that fit: a row a model, a column a number of devices; as a PNG."""
    grid = [[_fastest(model, cluster, count, batch) for count in devices] for model in models.values()]
    said = []
    for name, row in zip(models, grid, strict=True):
        cells = [f"{found.plan} in {style.duration(found.step)}" if found else "nothing fits" for found in row]
        said.append(f"{name}: " + "; ".join(f"on {n:,} {cell}" for n, cell in zip(devices, cells, strict=True)))
    alt = f"{title}. Fastest plans that fit. {'. '.join(said)}."
    return Picture("", alt, png=_png(list(models), devices, grid, title))


def _fastest(model: Model, cluster: Cluster, count: int, batch: int) -> Cost | None:
    return next((found for found in plans(model, cluster, devices=count, batch=batch) if found.fits), None)


def _png(names: list[str], devices: Sequence[int], grid: list[list[Cost | None]], title: str) -> bytes:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch, Rectangle

    width, height = style.WIDTH, TOP + ROW * len(names) + FOOT
    tints = {kind: tuple(0.45 + 0.55 * part for part in to_rgb(color)) for kind, color in FAMILIES.items()}
    figure = blank(width, height)
    ax = figure.add_axes((LEFT / width, FOOT / height, 1 - (LEFT + 6) / width, ROW * len(names) / height),
                         xlim=(0, len(devices)), ylim=(len(names), 0), facecolor="none")
    shown = set()
    for (y, row), x in product(enumerate(grid), range(len(devices))):
        look = {"x": x + 0.5, "y": y + 0.5, "ha": "center", "va": "center", "linespacing": 1.35}
        if (found := row[x]) is None:
            ax.text(s="does not fit", color=style.GREY, fontsize=7, **look)
            continue
        plan, kind = found.plan, family(found.plan)
        shown.add(kind)
        ax.add_patch(Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, facecolor=tints[kind]))
        more = f"Z{plan.zero}{' R' * plan.recompute} · {style.duration(found.step)}"
        text = f"{plan.dp}{TIMES}{plan.tp}{TIMES}{plan.pp}\n{more}"
        ax.text(s=text, color="black", fontsize=7.6, **look)  # on a tint: the same on a light and a dark page
    ax.set_xticks([i + 0.5 for i in range(len(devices))], [f"{count:,}" for count in devices])
    ax.set_yticks([i + 0.5 for i in range(len(names))], names)
    ax.tick_params(length=0, labelsize=9, labelcolor=style.GREY, top=False, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    note = (f"In a cell: {TIMES.join(('replicas', 'tensor parts', 'stages'))}; Z: ZeRO stage, R: activations computed "
            "again; time of a step.")
    figure.text(8 / width, 1 - 15 / height, title, fontsize=9.7, fontweight="bold", color=style.GREY, parse_math=False)
    for x, y, text in ((8, height - 35, "parameters"), (width / 2, height - 35, "devices"), (8, 8, note)):
        figure.text(x / width, y / height, text, fontsize=8, color=style.GREY)
    kinds = [kind for kind in FAMILIES if kind in shown]
    figure.legend([Patch(facecolor=tints[kind]) for kind in kinds], kinds, ncols=len(kinds), frameon=False, fontsize=8,
                  loc="lower left", bbox_to_anchor=(2 / width, 22 / height), labelcolor=style.GREY, handlelength=1.4,
                  columnspacing=1.3, handletextpad=0.5)
    return to_png(figure)
