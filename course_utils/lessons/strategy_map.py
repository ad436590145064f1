"""Which strategy when, on one page: the fastest plans that fit."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import style
from ..pictures import Picture
from ..pictures.picture import blank, to_png, write_around
from ..planner import Cluster, Model, Plan, mfu, plans

FAMILIES = {  # what a cell's colour says
    "one device": style.GREY,
    "replicas (ZeRO 0, 1)": style.RANK[0],
    "sharded (ZeRO 2, 3)": style.RANK[2],
    "with tensor parts": style.RANK[4],
    "with stages": style.RANK[3],
    "with both": style.RANK[1],
}
TIMES = " \N{MULTIPLICATION SIGN} "
# Of the planner's seconds, where nothing was fitted and no ZeRO 3 is in the plan
# (`published_runs`): a plan that is so close may be as fast.
ERROR = 0.18
DAGGER = "\N{DAGGER}"
NOTE = (
    f"{TIMES.join(('Replicas', 'tensor parts', 'stages'))}; Z: ZeRO stage, R: recomputed, v: "
    f"chunks of a stage; time of a step.\nStripes: another kind is within {ERROR:.0%}, or "
    f"({DAGGER}) is the fastest if no message hides behind arithmetic."
)


class Cell(NamedTuple):
    """The fastest plan for a model on so many devices."""

    text: str
    said: str  # for the picture's alternative text
    kinds: list[str]  # its own, and another that may be as fast; none where no plan fits


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


def page(
    models: Mapping[str, Model],
    devices: Sequence[int],
    cluster: Cluster,
    *,
    batch: int,
    peak: float,
    title: str,
) -> Picture:
    """A PNG of the fastest plans that fit, with their MFU on devices of `peak` FLOP/s.

    A cell is striped in the colour of another kind that is within the planner's error, or that is
    the fastest if nothing hides.
    """
    from matplotlib import rc_context

    rows = []
    said = []
    for name, model in models.items():
        row = [_cell(model, count, cluster, batch, peak) for count in devices]
        rows.append(row)
        said.append(f"{name}: {'; '.join(cell.said for cell in row)}")

    height = 48 * len(rows) + 134  # px
    figure = blank(style.WIDTH, height)
    columns = [f"{count:,}" for count in devices]
    columns[0] = style.plural(devices[0], "device")
    _draw_cells(figure, height, rows, [*models], columns)

    seen = {kind for row in rows for cell in row for kind in cell.kinds}
    legend = {kind: (_tint(kind), "none") for kind in FAMILIES if kind in seen}
    write_around(figure, title, legend, NOTE, spacing=1.2)
    with rc_context({"hatch.linewidth": 5}):
        png = to_png(figure)
    return Picture("", f"{title}. Fastest plans that fit. {'. '.join(said)}.", png=png)


def _cell(model: Model, devices: int, cluster: Cluster, batch: int, peak: float) -> Cell:
    costs = plans(model, cluster, devices=devices, batch=batch)
    fit = [cost for cost in costs if cost.fits]
    if not fit:
        return Cell("does not fit", f"on {devices:,} does not fit", [])

    best = fit[0]
    plan = best.plan
    kind = family(plan)
    nothing_hides = family(min(fit, key=lambda cost: cost.step + cost.hidden).plan)
    near = [family(cost.plan) for cost in fit if cost.step <= (1 + ERROR) * best.step]
    others = [other for other in near if other != kind]
    said = f"on {devices:,} {plan} in {style.duration(best.step)}"
    mark = ""
    if nothing_hides != kind:
        others = [nothing_hides]
        said += f", {nothing_hides} if nothing hides"
        mark = f" {DAGGER}"
    elif others:
        said += f", {others[0]} within {ERROR:.0%}"

    zero = "HSDP" if plan.group else f"Z{plan.zero}"
    if plan.recompute:
        zero += " R"
    if plan.chunks > 1:
        zero += f" v{plan.chunks}"
    sizes = TIMES.join(str(size) for size in (plan.dp, plan.tp, plan.pp))
    used = mfu(model, best, batch=batch, peak=peak)
    text = f"{sizes}\n{zero} · {style.duration(best.step)}\nMFU {used:.0%}{mark}"
    return Cell(text, said, [kind, *others[:1]])


def _draw_cells(
    figure: Any,
    height: int,
    rows: list[list[Cell]],
    models: list[str],
    columns: list[str],
) -> None:
    """The table, a row a model by its parameters, a column a number of devices."""
    width = style.WIDTH
    ax = figure.add_axes((64 / width, 78 / height, 1 - 70 / width, 1 - 98 / height))
    ax.set_axis_off()
    table = ax.table(
        [[cell.text for cell in row] for row in rows],
        bbox=(0, 0, 1, 1),
        cellLoc="center",
        rowLabels=models,
        colLabels=columns,
    )
    table.auto_set_font_size(False)
    for (i, column), drawn in table.get_celld().items():
        drawn.set(facecolor="none", edgecolor="none", linewidth=0.3)
        if i == 0 or column == -1:  # a label
            drawn.set_text_props(fontsize=9, color=style.GREY)
            continue

        kinds = rows[i - 1][column].kinds
        drawn.set_edgecolor(style.GREY)
        if kinds:
            drawn.set_facecolor(_tint(kinds[0]))
        if len(kinds) > 1:
            drawn.set(edgecolor=_tint(kinds[1], pale=0.2), hatch="//")
        # On a tint text is black, which is the same on a light and a dark page.
        drawn.set_text_props(fontsize=8.6, color="black" if kinds else style.GREY)


def _tint(kind: str, pale: float = 0.45) -> Any:
    """The pale colour of this kind of plan, behind black text."""
    from matplotlib.colors import to_rgb

    return tuple(pale + (1 - pale) * part for part in to_rgb(FAMILIES[kind]))
