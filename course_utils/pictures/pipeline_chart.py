"""Pipelines as a PNG: the rows are ranks, each box a forward or a backward (or half) with its micro-batch's number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import style
from ..errors import CourseError
from ..timeline import Timeline
from .axes import tick_texts, ticks
from .picture import Picture
from .png import FONTS, blank, gridlines, to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, RIGHT, ROW, HIGH, HEAD, FOOT = 60, 20, 24, 20, 22, 40  # px
SHADES = {
    "forward": (style.ROLE["forward"], "#99C7E0"),
    "backward": (style.ROLE["backward"], "#EEBF99"),
    "backward-input": (style.ROLE["backward"], "#EEBF99"),
    "backward-weight": (style.ROLE["optimizer"], "#99D8C7"),
}
LEGEND = {"backward-input": "B, input half of a backward", "backward-weight": "W, weight half"}


def pipelines(timelines: Mapping[str, Timeline], *, title: str = "", foot: str = "", unit: str = "s") -> Picture:
    """Pipelines below each other on one time axis, all from 0, each box with the number of its micro-batch.

    unit: that of the spans' times, in words where it is not seconds: "forwards".
    """
    from matplotlib.patches import Patch

    if not timelines or not all(len(t) for t in timelines.values()):
        raise CourseError("pipelines() needs timelines with spans in them, e.g. {'predicted': schedule.simulate()}.")
    seconds = max(t.seconds for t in timelines.values())
    panels = {name: len(t.ranks) * ROW for name, t in timelines.items()}
    top, bottom = (HEAD if title else 4), FOOT + 20 + (18 if foot else 0)
    width, height = style.WIDTH, top + bottom + sum(panels.values()) + HEAD * len(panels)
    figure = blank(width, height)
    if title:
        figure.text(8 / width, 1 - 4 / height, title, va="top", **FONTS | {"fontsize": 9.7}, fontweight="bold",
                    parse_math=False)
    y, said = top, []
    for name, timeline in timelines.items():
        idle = sum(timeline.idle(r) for r in timeline.ranks) / len(timeline.ranks)
        said.append(f"{name}: {idle:.1%} of the time is waiting")
        figure.text(LEFT / width, 1 - (y + 6) / height, said[-1], va="top", **FONTS)
        y += HEAD + panels[name]
        axes = figure.add_axes(
            (LEFT / width, 1 - y / height, (width - LEFT - RIGHT) / width, panels[name] / height), facecolor="none"
        )
        _panel(axes, timeline, seconds, unit=unit, last=name == [*timelines][-1])
    names = {s.name.split()[0] for t in timelines.values() for s in t.spans}
    kinds = [kind for kind in SHADES if kind in names]
    patches = [Patch(color=SHADES[kind][0], lw=0) for kind in kinds] + [Patch(color=style.GREY, alpha=0.25, lw=0)]
    figure.legend(patches, [*(LEGEND.get(kind, kind) for kind in kinds), "waiting"], ncols=len(patches),
                  frameon=False, loc="lower left",
                  labelcolor=style.GREY, bbox_to_anchor=(LEFT / width - 0.01, (18 if foot else 0) / height),
                  fontsize=FONTS["fontsize"], handlelength=0.9, handleheight=0.9, borderpad=0.2)
    if foot:
        figure.text(8 / width, 5 / height, foot, **FONTS, parse_math=False)
    ranks = max(len(t.ranks) for t in timelines.values())
    alt = f"{title or 'Pipeline'}. Gantt chart of {ranks} ranks. {'; '.join(said)}. {foot}".strip()
    return Picture("", alt, png=to_png(figure))


def _panel(axes: Axes, timeline: Timeline, seconds: float, *, unit: str, last: bool) -> None:
    ranks = timeline.ranks
    px = (style.WIDTH - LEFT - RIGHT) / seconds
    axes.set(xlim=(0, seconds), ylim=(len(ranks) * ROW, 0))
    axes.set_yticks([i * ROW + HIGH / 2 for i in range(len(ranks))], [f"rank {r}" for r in ranks], **FONTS)
    unit, scale = ("ms", 1000) if unit == "s" and seconds < 1.5 else (unit, 1)
    marks = [t for t in ticks(0, seconds * scale) if t <= seconds * scale * 1.0001]
    axes.set_xticks([t / scale for t in marks], tick_texts(marks) if last else [], **FONTS)
    if last:
        axes.set_xlabel(f"time ({unit})", labelpad=2, **FONTS)
    gridlines(axes, "x")
    for i, rank in enumerate(ranks):
        axes.broken_barh([(0, timeline.seconds)], (i * ROW, HIGH), color=style.GREY, alpha=0.18, lw=0)
        for s in timeline.spans:
            words = s.name.split()
            if s.rank == rank and s.lane == "compute" and words[0] in SHADES:
                odd = int(words[-1]) // len(ranks) % 2
                left, wide = s.start - timeline.start, max(s.seconds - 0.9 / px, 0.5 / px)
                color = SHADES[words[0]][0]  # also the edge, because the pale shades are hard to see on white
                look = {"fc": SHADES[words[0]][odd], "ec": color, "lw": 0.5 * odd}
                axes.broken_barh([(left, wide)], (i * ROW, HIGH), **look)
                if s.seconds * px > 7 * len(words[1]) + 2:
                    axes.text(left + wide / 2, i * ROW + HIGH / 2, words[1], ha="center", va="center_baseline",
                              color="black" if odd else style.ink(color), fontsize=style.SMALL * 0.72)
