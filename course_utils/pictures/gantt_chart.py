"""Timelines as Gantt charts, PNGs: every viewer of notebooks shows them, without a kernel and
without trust.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from .. import style
from ..timeline import Timeline
from .picture import FONTS, LINE, Box, Picture, blank, draw_boxes, to_png, write_around

# Px beside, above and below the bars.
LEFT, RIGHT, HEAD, FOOT = 60, 26, 22, 60
# Px of a rank's compute lane, of all others together, and below a rank.
HIGH, THIN, GAP = 20, 9, 7
MOST = 2000  # spans that are drawn, with those under way as they begin: more were a blur
# Colours of a pipeline's boxes: of a rank's first chunk of the model, and, paler, of the next.
SHADES = {
    "forward": (style.ROLE["forward"], "#99C7E0"),
    "backward": (style.ROLE["backward"], "#EEBF99"),
    "backward-input": (style.ROLE["backward"], "#EEBF99"),
    "backward-weight": (style.ROLE["optimizer"], "#99D8C7"),
}
KINDS = {"backward-input": "backward, or B, its input half", "backward-weight": "W, weight half"}
WAITING = style.GREY + "59"  # a third of it
LOOKS = {role: (color, "none") for role, color in style.ROLE.items()}  # fill and edge
LOOKS["idle"] = ("none", style.GREY)  # hollow, so that its name can be read on it


def gantt(timeline: Timeline) -> Picture:
    """A row per rank, a thin one below it for other lanes than "compute"; of many spans the last
    2,000. `Timeline` draws itself with this.
    """
    title = timeline.title
    says = ""
    if len(timeline.spans) > MOST:
        says = f"The last {MOST:,} of {len(timeline.spans):,} spans: "
        timeline = timeline.between(timeline.spans[-MOST].start, timeline.end)
    says += _summary(timeline)

    others = sorted({s.lane for s in timeline.spans} - {"compute"})
    row = HIGH + GAP
    if others:
        row += THIN + 2
    boxes = []
    for i, rank in enumerate(timeline.ranks):
        boxes += _boxes(timeline, rank, row * i)

    names: dict[str, set[str]] = defaultdict(set)  # of the spans, by role
    for s in timeline.spans:
        names[s.role].add(s.name)
    looks = {}
    for role, look in LOOKS.items():
        if role in names:
            alone = role in ("other", "idle") and len(names[role]) == 1
            looks[names[role].pop() if alone else role] = look
    chart = (
        f"Gantt chart of {len(timeline.spans):,} spans of "
        f"{style.plural(len(timeline.ranks), 'rank')} over {style.duration(timeline.seconds, 4)}"
    )
    return _chart(
        {says: (timeline.ranks, boxes)},
        row,
        looks,
        title=title,
        alt=f"{title}: {chart}. {says}." if title else f"{chart}. {says}.",
        foot=f"Thin rows: {', '.join(others)}." if others else "",
    )


def _boxes(timeline: Timeline, rank: int, top: float) -> list[Box]:
    """The boxes of one rank: of its compute lane, and, thin, of all others."""
    mine = timeline.by_rank[rank]
    boxes = [
        Box(s.start - timeline.start, s.seconds, top, HIGH, *LOOKS[s.role], s.name)
        for s in mine
        if s.lane == "compute"
    ]
    thin = [s for s in mine if s.lane != "compute"]
    # What overlaps, as buckets under way at once do, lies one above the other.
    levels, high = 1, THIN
    if any(after.start < before.end for before, after in pairwise(thin)):
        levels, high = 3, THIN // 3 - 1
    for n, s in enumerate(thin):
        level = top + HIGH + 2 + n % levels * THIN // levels
        boxes.append(Box(s.start - timeline.start, s.seconds, level, high, *LOOKS[s.role]))
    return boxes


def pipelines(
    timelines: Mapping[str, Timeline], *, title: str = "", foot: str = "", unit: str = "s"
) -> Picture:
    """Pipelines below each other on one axis of time (in `unit`), each box with the number of its
    micro-batch.
    """
    panels = {
        f"{name}: {timeline.idle():.1%} of the time is waiting": (
            timeline.ranks,
            _pipeline(timeline),
        )
        for name, timeline in timelines.items()
    }
    names = {s.name.split()[0] for timeline in timelines.values() for s in timeline.spans}
    # One colour, one entry: the last of its kinds says what it is.
    kinds = {fill: KINDS.get(kind, kind) for kind, (fill, _) in SHADES.items() if kind in names}
    looks = {kind: (fill, "none") for fill, kind in kinds.items()}
    ranks = max(len(timeline.ranks) for timeline in timelines.values())
    alt = f"{title or 'Pipeline'}. Gantt chart of {ranks} ranks. {'; '.join(panels)}. {foot}"
    return _chart(
        panels,
        HIGH + 4,
        looks | {"waiting": (WAITING, style.GREY)},
        title=title,
        foot=foot,
        unit=unit,
        alt=alt.strip(),
    )


def _summary(timeline: Timeline) -> str:
    """What the chart shows, in one sentence."""
    if not timeline.seconds:
        return "No spans were recorded"
    if talk := _busy(timeline, {"communication"}):
        share = f"{timeline.overlap() / talk:.0%}"
        return f"{share} of the communication happens while the same rank computes"

    spans = defaultdict(list)
    for s in timeline.spans:
        spans[s.name if s.role == "other" else s.role].append(s)
    lanes = {s.lane for s in timeline.spans}
    takes = {what: _busy(Timeline(some), lanes) for what, some in spans.items()}
    first, most = max(takes.items(), key=lambda item: item[1])
    share = f"{most / (len(timeline.ranks) * timeline.seconds):.0%}"
    idle = timeline.idle()
    waits = f", ranks wait {idle:.0%} of it" if idle >= 0.1 else ""
    return f"{first.capitalize()} takes {share} of the time{waits}"


def _busy(timeline: Timeline, lanes: Iterable[str]) -> float:
    """Seconds in which ranks were busy in any of these lanes, summed over ranks."""
    return sum(timeline.busy(rank, *lanes) for rank in timeline.ranks)


def _pipeline(timeline: Timeline) -> list[Box]:
    """Every second chunk is pale, with an edge, because pale is hard to see on white; behind them
    all is waiting.
    """
    tops = {rank: i * (HIGH + 4) for i, rank in enumerate(timeline.ranks)}
    boxes = [Box(0, timeline.seconds, top, HIGH, WAITING, "none") for top in tops.values()]
    for s in timeline.spans:
        kind, *words = s.name.split()  # "forward 3 of part 5"
        if kind in SHADES:
            full, pale = SHADES[kind]
            part = int(words[-1]) if words and words[-1].isdigit() else 0
            odd = part // len(tops) % 2 == 1
            fill, edge = (pale, full) if odd else (full, "none")
            left = s.start - timeline.start
            boxes.append(Box(left, s.seconds, tops[s.rank], HIGH, fill, edge, *words[:1]))
    return boxes


def _chart(
    panels: Mapping[str, tuple[tuple[int, ...], list[Box]]],
    row: float,
    looks: Mapping[str, tuple[str, str]],
    *,
    title: str,
    foot: str,
    alt: str,
    unit: str = "s",
) -> Picture:
    """Panels, (ranks, boxes) below their headings, on one time axis; `row`: px of a rank; `looks`:
    the legend.
    """
    boxes = [box for _, boxes in panels.values() for box in boxes]
    seconds = max((box.left + box.wide for box in boxes), default=0) or 1.0
    width = style.WIDTH
    heights = [max(1.0, row * len(ranks)) for ranks, _ in panels.values()]
    top = 4 + (LINE if title else 0)
    bottom = FOOT + (LINE if foot else 0)
    height = top + sum(HEAD + high for high in heights) + bottom
    figure = blank(width, height)
    write_around(figure, title, looks, foot)

    wide = width - LEFT - RIGHT
    for high, (heading, (ranks, boxes)) in zip(heights, panels.items(), strict=True):
        top += HEAD + high
        ax = figure.add_axes(
            (LEFT / width, (height - top) / height, wide / width, high / height),
            xlim=(0, seconds),
            ylim=(high, 0),
            frameon=False,
            axisbelow=True,
        )
        draw_boxes(ax, boxes, wide / seconds)
        ax.set_title(heading, loc="left", pad=4, **FONTS)
        middles = [row * i + HIGH / 2 for i in range(len(ranks))]
        ax.set_yticks(middles, [f"rank {rank}" for rank in ranks])
        ax.tick_params(
            length=0, labelbottom=False, labelcolor=style.GREY, labelsize=FONTS["fontsize"]
        )
        ax.grid(axis="x", color=style.GREY, alpha=0.3, lw=0.7)

    scale = 1
    if unit == "s" and seconds < 10:
        unit, scale = "ms", 1000
    last = figure.axes[-1]
    last.tick_params(labelbottom=True)
    last.set_xlabel(f"time ({unit})", labelpad=2, **FONTS)
    last.xaxis.set_major_formatter(lambda value, _: f"{scale * value:,g}")
    return Picture("", alt, png=to_png(figure))


# How the last line of a cell draws a timeline.
Timeline._repr_png_ = lambda timeline: gantt(timeline)._repr_png_()
