"""A timeline as a Gantt chart, a PNG: every viewer of notebooks shows it, without a kernel and without trust."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from .. import drawing, style
from ..timeline import Span, Timeline
from .axes import tick_texts, ticks
from .picture import Picture
from .png import FONTS, blank, gridlines, to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, RIGHT = 60, 26  # px beside the bars: the ranks' names, and half a tick's text
UNITS = style.WIDTH - LEFT - RIGHT  # px the time axis is long
LANE, THIN, GAP = 20, 9, 9  # heights of a compute lane and of any other, and the space below a rank, px
LEVELS = 3  # rows that a thin lane is split into when its spans overlap, as buckets under way at once do
LINE = 18  # height of a line of text, px
TITLE = 95  # characters of a title that fit on one line


class Bar(NamedTuple):
    """One or more spans of one lane, in px of the time axis."""

    left: float
    right: float
    role: str
    spans: list[Span]


def bars_of(spans: list[Span], start: float, scale: float, least: float) -> list[Bar]:
    """Spans at least `least` px wide as they are; shorter neighbours share a bar in the role that lasts longest."""
    bars: list[Bar] = []
    short: list[Span] = []

    def flush() -> None:
        if short:
            weights = Counter()
            for s in short:
                weights[s.role] += s.seconds + 1e-12
            left, right = (short[0].start - start) * scale, (max(s.end for s in short) - start) * scale
            bars.append(Bar(left, max(right, left + 0.6), weights.most_common(1)[0][0], list(short)))
            short.clear()

    for s in spans:
        left, right = (s.start - start) * scale, (s.end - start) * scale
        if short and right - (short[0].start - start) * scale > least:
            flush()
        if right - left >= least:
            bars.append(Bar(left, right, s.role, [s]))
        else:
            short.append(s)
    flush()
    return sorted(bars, key=lambda b: b.left)


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
    idle = sum(timeline.idle(r) for r in ranks) / len(ranks)
    waiting = f", {'ranks wait' if len(ranks) > 1 else 'waiting'} {idle:.0%} of it" if idle >= 0.1 else ""
    return f"{first.capitalize()} takes {most / (len(ranks) * seconds):.0%} of the time{waiting}"


def levels_of(bars: list[Bar]) -> list[tuple[int, Bar]]:
    """Each bar with the first row in which nothing is under way when it begins; the last row takes what is left."""
    ends, placed = [float("-inf")] * LEVELS, []
    for bar in bars:
        level = next((i for i, end in enumerate(ends) if end <= bar.left + 0.5), LEVELS - 1)
        ends[level] = max(ends[level], bar.right)
        placed.append((level, bar))
    return placed


@drawing.of.register(Timeline)
def gantt(timeline: Timeline) -> Picture:
    """A row per rank, a thinner one below it for each further lane; see `Timeline`, which draws itself with this."""
    ranks, lanes, seconds = timeline.ranks, timeline.lanes, timeline.seconds or 1e-9
    says = finding(timeline)
    alt = (f"{timeline.title + ': ' if timeline.title else ''}Gantt chart of {len(timeline.spans):,} spans of "
           f"{len(ranks)} rank{'s' if len(ranks) != 1 else ''} over {1000 * timeline.seconds:.1f} ms. {says}.")
    rows = {(r, lane): bars_of([s for s in timeline.spans if s.rank == r and s.lane == lane],
                               timeline.start, UNITS / seconds, 0.5) for r in ranks for lane in lanes}
    bars = [bar for row in rows.values() for bar in row]
    notes = _notes(bars, lanes)
    high = len(ranks) * (LANE + GAP + (len(lanes) - 1) * (THIN + 2))  # px of all rows
    then = ". " if ":" in timeline.title else ": "
    title = textwrap.wrap(f"{timeline.title}{then}{says}" if timeline.title else says, TITLE)
    top, bottom = LINE * (1 + len(title)) - 4, LINE * (3 + bool(notes))
    width, height = style.WIDTH, top + high + bottom
    figure = blank(width, height)
    figure.text(8 / width, 1 - 6 / height, "\n".join(title), va="top", **FONTS | {"fontsize": 9.7},
                fontweight="bold", parse_math=False)
    ax = figure.add_axes((LEFT / width, bottom / height, UNITS / width, max(high, 1) / height), facecolor="none")
    ax.set(xlim=(0, UNITS), ylim=(max(high, 1), 0), yticks=[])
    if ranks:
        _axis(ax, seconds)
    else:
        ax.set_axis_off()
    y = 0
    for rank in ranks:
        ax.text(-8, y + LANE / 2, f"rank {rank}", ha="right", va="center", **FONTS)
        for lane in lanes:
            if lane == lanes[0]:
                _compute(ax, rows[rank, lane], y)
                y += LANE + 2
            else:
                _beside(ax, rows[rank, lane], y)
                y += THIN + 2
        y += GAP - 2
    _legend(figure, {bar.role for bar in bars}, (4 / width, (LINE * bool(notes)) / height))
    if notes:
        figure.text(8 / width, 5 / height, notes, **FONTS)
    return Picture("", alt, png=to_png(figure))


def _notes(bars: list[Bar], lanes: tuple[str, ...]) -> str:
    thin = f"Thin rows: {', '.join(lanes[1:])}. " if len(lanes) > 1 else ""
    merged = sum(len(bar.spans) for bar in bars if len(bar.spans) > 1)
    return thin + (f"{merged:,} spans too short to see share bars with their neighbours." if merged else "")


def _axis(ax: Axes, seconds: float) -> None:
    span, unit = (1000 * seconds, "ms") if seconds < 10 else (seconds, "s")
    marks = [t for t in ticks(0, span) if t <= span * 1.0001]
    ax.set_xticks([t / span * UNITS for t in marks], tick_texts(marks), **FONTS)
    ax.set_xlabel(f"time ({unit})", labelpad=2, **FONTS)
    gridlines(ax, "x")


def _paint(ax: Axes, bars: list[Bar], y: float, height: float) -> None:
    """All of a row in one collection: an artist for each would take matplotlib minutes."""
    wide = [bar.right - bar.left for bar in bars]
    places = [(bar.left, w - min(0.9, 0.2 * w)) for bar, w in zip(bars, wide, strict=True)]  # a seam to the next
    looks = [_look(bar.role) for bar in bars]
    ax.broken_barh(places, (y, height), **{key: [look[key] for look in looks] for key in ("fc", "ec", "lw")})


def _look(role: str) -> dict:
    """Idle is hollow, so that its name can be read on it."""
    hollow = {"fc": "none", "ec": style.GREY, "lw": 0.8}
    return hollow if role == "idle" else {"fc": style.ROLE[role], "ec": "none", "lw": 0}


def _compute(ax: Axes, bars: list[Bar], y: float) -> None:
    """Bars with their names where these fit; the longest first, so that what is inside lies on top."""
    bars = sorted(bars, key=lambda b: b.left - b.right)
    _paint(ax, bars, y, LANE)
    for bar in bars:
        name = bar.spans[0].name
        if len(bar.spans) == 1 and bar.right - bar.left > 7 * len(name) + 6:
            color = style.GREY if bar.role == "idle" else style.ink(style.ROLE[bar.role])
            ax.text((bar.left + bar.right) / 2, y + LANE / 2, name, ha="center", va="center_baseline",
                    color=color, fontsize=style.SMALL * 0.72, parse_math=False)


def _beside(ax: Axes, bars: list[Bar], y: float) -> None:
    """A thin lane; spans that overlap lie one above the other."""
    placed = levels_of(bars)
    rows = 1 + max((level for level, _ in placed), default=0)
    for row in range(rows):
        _paint(ax, [bar for level, bar in placed if level == row], y + row * THIN / rows, THIN / rows - (rows > 1))


def _legend(figure: object, roles: set[str], corner: tuple[float, float]) -> None:
    from matplotlib.patches import Patch

    shown = [role for role in style.ROLE if role in roles]
    patches = [Patch(**_look(role)) for role in shown]
    figure.legend(patches, shown, ncols=len(shown) or 1, frameon=False, loc="lower left", bbox_to_anchor=corner,
                  fontsize=FONTS["fontsize"], labelcolor=style.GREY, handlelength=0.9, handleheight=0.9, borderpad=0.2)
