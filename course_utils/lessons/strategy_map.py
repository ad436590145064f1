"""Which strategy when, on one page: the fastest plans that fit."""

from collections.abc import Mapping, Sequence
from typing import Any

from .. import style
from ..pictures import Picture
from ..pictures.picture import blank, to_png
from ..planner import Cluster, Cost, Model, Plan, mfu, plans

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
    if plan.devices == 1:
        return "one device"
    if plan.tp > 1 and plan.pp > 1:
        return "with both"
    if plan.tp > 1:
        return "with tensor parts"
    if plan.pp > 1:
        return "with stages"
    return "replicas (ZeRO 0, 1)" if plan.zero < 2 else "sharded (ZeRO 2, 3)"


def rivals(costs: Sequence[Cost], error: float) -> list[str]:
    """Kinds of plan that fit and take at most `error` longer than the fastest, its own first."""
    near = [cost for cost in costs if cost.fits and cost.step <= (1 + error) * costs[0].step]
    return [*dict.fromkeys(family(cost.plan) for cost in near)]


def page(
    models: Mapping[str, Model],
    devices: Sequence[int],
    cluster: Cluster,
    *,
    batch: int,
    peak: float,
    title: str,
    error: float = 0.12,
) -> Picture:
    """A PNG of the fastest plans that fit, with their MFU on devices of `peak` FLOP/s.

    A cell is striped in the colour of another kind that is within the planner's `error`.
    """
    from matplotlib import rc_context

    best: list[list[Cost | None]] = []
    texts = []
    near: list[list[list[str]]] = []
    said = []
    for name, model in models.items():
        costs = [plans(model, cluster, devices=count, batch=batch) for count in devices]
        best.append([each[0] if each and each[0].fits else None for each in costs])
        texts.append([_text(cost, model, batch, peak) for cost in best[-1]])
        near.append([rivals(each, error) for each in costs])
        words = [_spoken(*cell, error) for cell in zip(devices, best[-1], near[-1], strict=True)]
        said.append(f"{name}: {'; '.join(words)}")

    height = 46 * len(best) + 122  # px
    figure = blank(style.WIDTH, height)
    columns = [f"{count:,}" for count in devices]
    columns[0] += " device" if devices[0] == 1 else " devices"
    _draw_cells(figure, height, texts, near, [*models], columns)
    _write_around(figure, height, title, near, error)
    with rc_context({"hatch.linewidth": 5}):
        png = to_png(figure)
    return Picture("", f"{title}. Fastest plans that fit. {'. '.join(said)}.", png=png)


def _draw_cells(
    figure: Any,
    height: int,
    texts: list[list[str]],
    near: list[list[list[str]]],
    rows: list[str],
    columns: list[str],
) -> None:
    """The table, a row a model by its parameters, a column a number of devices."""
    width = style.WIDTH
    ax = figure.add_axes((64 / width, 66 / height, 1 - 70 / width, 1 - 86 / height))
    ax.set_axis_off()
    table = ax.table(
        texts,
        bbox=(0, 0, 1, 1),
        cellLoc="center",
        cellColours=[[_tint(kinds[0]) if kinds else "none" for kinds in row] for row in near],
        rowLabels=rows,
        colLabels=columns,
        rowColours=["none"] * len(rows),
        colColours=["none"] * len(columns),
    )
    table.auto_set_font_size(False)
    for (row, column), cell in table.get_celld().items():
        if row == 0 or column == -1:  # a label
            cell.set(edgecolor="none", linewidth=0.3)
            cell.set_text_props(fontsize=9, color=style.GREY)
            continue

        kinds = near[row - 1][column]
        cell.set(edgecolor=style.GREY, linewidth=0.3)
        if len(kinds) > 1:
            cell.set(edgecolor=_tint(kinds[1], pale=0.2), hatch="//")
        # On a tint text is black, which is the same on a light and a dark page.
        cell.set_text_props(fontsize=7.6, color="black" if kinds else style.GREY)


def _write_around(
    figure: Any, height: int, title: str, near: list[list[list[str]]], error: float
) -> None:
    """The title above the table, and below it the legend and what its abbreviations mean."""
    from matplotlib.patches import Patch

    left = 8 / style.WIDTH
    top = 1 - 15 / height
    bold = {"fontsize": 9.7, "fontweight": "bold", "parse_math": False}
    figure.text(left, top, title, color=style.GREY, **bold)
    note = (
        f"{TIMES.join(('Replicas', 'tensor parts', 'stages'))}; Z: ZeRO stage, R: recomputed; time "
        f"of a step. Stripes: this other kind is within {error:.0%}."
    )
    figure.text(left, 8 / height, note, fontsize=8, color=style.GREY)

    seen = {kind for row in near for kinds in row for kind in kinds[:2]}
    shown = [kind for kind in FAMILIES if kind in seen]
    figure.legend(
        [Patch(facecolor=_tint(kind)) for kind in shown],
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


def _tint(kind: str, pale: float = 0.45) -> Any:
    """The pale colour of this kind of plan, behind black text."""
    from matplotlib.colors import to_rgb

    return tuple(pale + (1 - pale) * part for part in to_rgb(FAMILIES[kind]))


def _text(cost: Cost | None, model: Model, batch: int, peak: float) -> str:
    if cost is None:
        return "does not fit"
    plan = cost.plan
    zero = "HSDP" if plan.group else f"Z{plan.zero}"
    if plan.recompute:
        zero += " R"
    sizes = TIMES.join(str(size) for size in (plan.dp, plan.tp, plan.pp))
    used = mfu(model, cost, batch=batch, peak=peak)
    return f"{sizes}\n{zero} · {style.duration(cost.step)}\nMFU {used:.0%}"


def _spoken(devices: int, cost: Cost | None, kinds: list[str], error: float) -> str:
    """A cell in words, for the picture's alternative text."""
    if cost is None:
        return f"on {devices:,} does not fit"
    words = f"on {devices:,} {cost.plan} in {style.duration(cost.step)}"
    if len(kinds) > 1:
        words += f", {kinds[1]} within {error:.0%}"
    return words
