"""Which strategy when, on one page: for each model and number of devices the fastest plan that fits, by the planner."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from .. import style
from ..pictures import Picture
from ..pictures.png import blank, to_png
from ..theory.cost import Cluster, Cost, Model, Plan, plans

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
ROW, LEFT, TOP, FOOT = 46, 58, 60, 66  # px
TIMES = " \N{MULTIPLICATION SIGN} "


def family(plan: Plan) -> str:
    """What kind of plan it is, one of `FAMILIES`."""
    names = list(FAMILIES)
    if plan.tp > 1 or plan.pp > 1:
        return names[5 if plan.tp > 1 and plan.pp > 1 else 3 if plan.tp > 1 else 4]
    return names[0 if plan.devices == 1 else 1 if plan.zero < 2 else 2]


def page(models: Mapping[str, Model], devices: Sequence[int], cluster: Cluster, *, batch: int, title: str) -> Picture:
    """A grid of the fastest plans that fit: a row a model, a column a number of devices; as a PNG."""
    grid = [[_fastest(model, cluster, count, batch) for count in devices] for model in models.values()]
    lines = {name: ", ".join(f"on {count:,} {_said(found)}" for count, found in zip(devices, row, strict=True))
             for name, row in zip(models, grid, strict=True)}
    said = "; ".join(f"{name}: {line}" for name, line in lines.items())
    alt = f"{title}. Fastest plans that fit. {said}."
    return Picture(f"<p>{html.escape(alt)}</p>", alt, png=_png(list(models), devices, grid, title))


def _fastest(model: Model, cluster: Cluster, count: int, batch: int) -> Cost | None:
    found = plans(model, cluster, devices=count, batch=batch)
    return found[0] if found and found[0].fits else None


def _said(found: Cost | None) -> str:
    if found is None:
        return "nothing fits"
    plan = found.plan
    return f"dp {plan.dp}, tp {plan.tp}, pp {plan.pp}, ZeRO {plan.zero} in {style.duration(found.step)}"


def _png(names: list[str], devices: Sequence[int], grid: list[list[Cost | None]], title: str) -> bytes:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch, Rectangle

    width, height = style.WIDTH, TOP + ROW * len(names) + FOOT
    figure = blank(width, height)
    ax = figure.add_axes((LEFT / width, FOOT / height, 1 - (LEFT + 6) / width, ROW * len(names) / height))
    ax.set(xlim=(0, len(devices)), ylim=(len(names), 0), facecolor="none")
    tints = {kind: tuple(0.45 + 0.55 * part for part in to_rgb(color)) for kind, color in FAMILIES.items()}
    for y, row in enumerate(grid):
        for x, found in enumerate(row):
            middle = {"x": x + 0.5, "y": y + 0.5, "ha": "center", "va": "center", "linespacing": 1.35}
            if found is None:
                ax.text(s="does not fit", color=style.GREY, fontsize=7, **middle)
                continue
            plan = found.plan  # dark text on a tint: the same on a light and a dark page
            ax.add_patch(Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, facecolor=tints[family(plan)]))
            more = f"Z{plan.zero}{' R' if plan.recompute else ''} · {style.duration(found.step)}"
            ax.text(s=f"{plan.dp}{TIMES}{plan.tp}{TIMES}{plan.pp}\n{more}", color="black", fontsize=7.6, **middle)
    ax.set_xticks([i + 0.5 for i in range(len(devices))], [f"{count:,}" for count in devices])
    ax.set_yticks([i + 0.5 for i in range(len(names))], names)
    ax.tick_params(length=0, labelsize=9, labelcolor=style.GREY, top=False, labeltop=True, labelbottom=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    figure.text(8 / width, 1 - 15 / height, title, fontsize=9.7, fontweight="bold", color=style.GREY, parse_math=False)
    figure.text(8 / width, 1 - 35 / height, "parameters", fontsize=8, color=style.GREY)
    figure.text(0.5, 1 - 35 / height, "devices", fontsize=8, color=style.GREY)
    note = (f"In a cell: {TIMES.join(('replicas', 'tensor parts', 'stages'))}; Z: ZeRO stage, R: activations computed "
            "again; time of a step.")
    figure.text(8 / width, 8 / height, note, fontsize=8, color=style.GREY)
    kinds = [kind for kind in FAMILIES if any(found and family(found.plan) == kind for row in grid for found in row)]
    figure.legend([Patch(facecolor=tints[kind]) for kind in kinds], kinds, ncols=len(kinds), frameon=False, fontsize=8,
                  loc="lower left", bbox_to_anchor=(2 / width, 22 / height), labelcolor=style.GREY, handlelength=1.4,
                  columnspacing=1.3, handletextpad=0.5)
    return to_png(figure)
