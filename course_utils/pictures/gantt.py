"""Timelines as Gantt charts, PNGs: every viewer of notebooks shows them, without a kernel and without trust."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from .. import style
from ..timeline import Span, Timeline
from .picture import FONTS, Picture, blank, gridlines, to_png

LEFT, RIGHT, LINE = 60, 26, 18  # px: beside the bars, for the ranks' names and half a tick's text; a line of text
UNITS = style.WIDTH - LEFT - RIGHT  # px that the time axis is long
ROW, THIN, GAP = 20, 9, 6  # px: a compute lane, any other, the space below a rank
LEVELS = 3  # rows that a thin lane is split into when its spans overlap, as buckets under way at once do
SHADES = {  # of even and odd rounds of micro-batches
    "forward": (style.ROLE["forward"], "#99C7E0"),
    "backward": (style.ROLE["backward"], "#EEBF99"),
    "backward-input": (style.ROLE["backward"], "#EEBF99"),
    "backward-weight": (style.ROLE["optimizer"], "#99D8C7"),
}
HALVES = {"backward-input": "B, input half of a backward", "backward-weight": "W, weight half"}


class Box(NamedTuple):
    """A bar: from where to where in seconds, where in px from the top, its colours, and the word on it."""

    left: float
    right: float
    top: float
    high: float
    fill: str
    edge: str = "none"
    word: str = ""


def gantt(timeline: Timeline) -> Picture:
    """A row per rank, a thinner one below it for each further lane; see `Timeline`, which draws itself with this."""
    ranks, lanes, seconds = timeline.ranks, timeline.lanes, timeline.seconds or 1e-9
    each = ROW + GAP + (len(lanes) - 1) * (THIN + 2)
    boxes, short = [], 0
    for i, rank in enumerate(ranks):
        for lane in lanes:
            mine = [s for s in timeline.spans if (s.rank, s.lane) == (rank, lane)]
            bars = _merged(mine, 0.5 * seconds / UNITS)
            short += sum(len(bar) for bar in bars if len(bar) > 1)
            top = i * each + (ROW + 2 + (lanes.index(lane) - 1) * (THIN + 2)) * (lane != lanes[0])
            boxes += _boxes(bars, timeline.start, top, seconds, thin=lane != lanes[0])
    says = finding(timeline)
    foot = f"Thin rows: {', '.join(lanes[1:])}. " if len(lanes) > 1 else ""
    foot += f"{short:,} spans too short to see share bars with their neighbours." if short else ""
    roles = {s.role for s in timeline.spans}
    image = _chart(
        {"": ([*ranks], each, boxes)}, seconds, foot=foot,
        title=f"{timeline.title}{'. ' if ':' in timeline.title else ': '}{says}" if timeline.title else says,
        legend={role: _look(role) for role in style.ROLE if role in roles},
    )
    alt = (f"{timeline.title + ': ' if timeline.title else ''}Gantt chart of {len(timeline.spans):,} spans of "
           f"{len(ranks)} rank{'s' if len(ranks) != 1 else ''} over {1000 * timeline.seconds:.1f} ms. {says}.")
    return Picture("", alt, png=image)


def finding(timeline: Timeline) -> str:
    """What the chart shows, in one sentence."""
    ranks, seconds = timeline.ranks, timeline.seconds
    if not ranks or not seconds:
        return "No spans were recorded"
    talk = sum(timeline.busy(r, "communication") for r in ranks)
    if talk:
        return f"{timeline.overlap() / talk:.0%} of the communication happens while the same rank computes"
    by_role = Counter()
    for s in timeline.spans:
        by_role[s.role if s.role != "other" else s.name] += s.seconds if s.role != "idle" else 0
    (first, most), *_ = by_role.most_common(1)
    idle = timeline.idle()
    waiting = f", {'ranks wait' if len(ranks) > 1 else 'waiting'} {idle:.0%} of it" if idle >= 0.1 else ""
    return f"{first.capitalize()} takes {most / (len(ranks) * seconds):.0%} of the time{waiting}"


def pipelines(timelines: Mapping[str, Timeline], *, title: str = "", foot: str = "", unit: str = "s") -> Picture:
    """Pipelines below each other on one time axis, all from 0, each box with the number of its micro-batch.

    unit: that of the spans' times, in words where it is not seconds: "forwards".
    """
    seconds = max(timeline.seconds for timeline in timelines.values())
    panels, said = {}, []
    for name, timeline in timelines.items():
        said.append(f"{name}: {timeline.idle():.1%} of the time is waiting")
        boxes = []
        for i, rank in enumerate(timeline.ranks):
            boxes.append(Box(0, timeline.seconds, i * (ROW + 4), ROW, style.GREY + "2E"))
            for s in timeline.spans:
                kind, *_, number = s.name.split()
                if s.rank == rank and kind in SHADES:  # the edge is dark, because pale shades are hard to see on white
                    fill = SHADES[kind][int(number) // len(timeline.ranks) % 2]
                    begin, end = s.start - timeline.start, s.end - timeline.start
                    boxes.append(Box(begin, end, i * (ROW + 4), ROW, fill, SHADES[kind][0], s.name.split()[1]))
        panels[said[-1]] = [*timeline.ranks], ROW + 4, boxes
    kinds = {s.name.split()[0] for timeline in timelines.values() for s in timeline.spans}
    legend = {HALVES.get(kind, kind): (SHADES[kind][0], "none") for kind in SHADES if kind in kinds}
    legend["waiting"] = style.GREY + "40", "none"
    ranks = max(len(timeline.ranks) for timeline in timelines.values())
    alt = f"{title or 'Pipeline'}. Gantt chart of {ranks} ranks. {'; '.join(said)}. {foot}".strip()
    return Picture("", alt, png=_chart(panels, seconds, unit=unit, title=title, foot=foot, legend=legend))


def _merged(spans: list[Span], least: float) -> list[list[Span]]:
    """Spans of at least so many seconds by themselves; shorter neighbours together, no longer than that in all."""
    bars: list[list[Span]] = []
    for s in spans:
        short = s.seconds < least
        if short and bars and bars[-1][-1].seconds < least and s.end - bars[-1][0].start <= least:
            bars[-1].append(s)
        else:
            bars.append([s])
    return bars


def _boxes(bars: list[list[Span]], start: float, top: float, seconds: float, *, thin: bool) -> list[Box]:
    """A row's bars, the longest first, so that what is inside lies on top; thin ones that overlap lie apart."""
    ends, placed = [float("-inf")] * LEVELS, []
    for bar in bars:
        left, right = bar[0].start - start, max(s.end for s in bar) - start
        level = next((i for i, end in enumerate(ends) if end <= left + 0.5 * seconds / UNITS), LEVELS - 1)
        ends[level] = max(ends[level], right)
        placed.append((level if thin else 0, left, right, max(bar, key=lambda s: s.seconds)))
    rows = 1 + max((level for level, *_ in placed), default=0)
    high = (THIN if thin else ROW) / rows
    boxes = [Box(left, right, top + level * high, high - (rows > 1), *_look(s.role), "" if thin else s.name)
             for level, left, right, s in placed]
    return sorted(boxes, key=lambda box: box.left - box.right)


def _look(role: str) -> tuple[str, str]:
    """Fill and edge; idle is hollow, so that its name can be read on it."""
    return ("none", style.GREY) if role == "idle" else (style.ROLE[role], "none")


def _chart(panels: Mapping[str, tuple[list[int], int, list[Box]]], seconds: float, *, title: str, foot: str,
           legend: Mapping[str, tuple[str, str]], unit: str = "s") -> bytes:
    """Panels below each other on one time axis: {what stands above it: (ranks, px a rank, boxes)}."""
    from matplotlib.patches import Patch

    lines = textwrap.wrap(title, 95)
    bottom = LINE * (3 + bool(foot))
    width, height = style.WIDTH, LINE * len(lines) + 8 + bottom
    height += sum(LINE * bool(name) + max(1, len(ranks)) * each for name, (ranks, each, _) in panels.items())
    figure = blank(width, height)
    text = FONTS | {"parse_math": False}
    figure.text(8 / width, 1 - 4 / height, "\n".join(lines), va="top", **text | {"fontsize": 9.7}, fontweight="bold")
    scale, unit = (1000, "ms") if unit == "s" and seconds < 10 else (1, unit)
    y = LINE * len(lines) + 8
    for name, (ranks, each, boxes) in panels.items():
        figure.text(LEFT / width, 1 - y / height, name, va="top", **text)
        y += LINE * bool(name) + max(1, len(ranks)) * each
        ax = figure.add_axes((LEFT / width, 1 - y / height, UNITS / width, max(1, len(ranks)) * each / height),
                             facecolor="none")
        ax.set(xlim=(0, seconds * scale), ylim=(max(1, len(ranks)) * each, 0))
        ax.tick_params(labelcolor=style.GREY, labelsize=text["fontsize"], labelbottom=name == [*panels][-1])
        ax.set_yticks([i * each + ROW / 2 for i in range(len(ranks))], [f"rank {rank}" for rank in ranks])
        gridlines(ax, "x")
        _paint(ax, boxes, scale, seconds)
    ax.set_xlabel(f"time ({unit})", labelpad=2, color=style.GREY, fontsize=text["fontsize"])
    figure.legend([Patch(fc=fill, ec=edge) for fill, edge in legend.values()], [*legend], ncols=len(legend) or 1,
                  frameon=False, loc="lower left", bbox_to_anchor=(4 / width, LINE * bool(foot) / height),
                  labelcolor=style.GREY, fontsize=text["fontsize"], handlelength=0.9, handleheight=0.9, borderpad=0.2)
    figure.text(8 / width, 5 / height, foot, **text)
    return to_png(figure)


def _paint(ax: object, boxes: list[Box], scale: float, seconds: float) -> None:
    """The boxes, a row of them in one collection: an artist for each would take matplotlib minutes."""
    px = UNITS / seconds
    for row in dict.fromkeys((box.top, box.high) for box in boxes):
        mine = [box for box in boxes if (box.top, box.high) == row]
        seams = [min(0.9 / px, 0.2 * (box.right - box.left)) for box in mine]  # to the next box
        places = [(scale * b.left, scale * (b.right - b.left - seam)) for b, seam in zip(mine, seams, strict=True)]
        ax.broken_barh(places, row, facecolors=[b.fill for b in mine], edgecolors=[b.edge for b in mine], lw=0.6)
    for box in boxes:
        if box.word and (box.right - box.left) * px > 7 * len(box.word) + 6:
            color = style.GREY if box.fill == "none" else style.ink(box.fill)
            ax.text(scale * (box.left + box.right) / 2, box.top + box.high / 2, box.word, ha="center",
                    va="center_baseline", color=color, fontsize=style.SMALL * 0.72, parse_math=False)
