"""Timelines as Gantt charts, PNGs: every viewer of notebooks shows them, without a kernel and without trust."""

from collections import Counter, namedtuple
from collections.abc import Mapping
from itertools import pairwise

from .. import style
from ..timeline import Timeline
from .picture import FONTS, Picture, blank, to_png

LEFT, RIGHT, HEAD, FOOT, LINE = (
    60,
    26,
    22,
    60,
    18,
)  # px beside, above and below the bars, and of a line of text
HIGH, THIN, GAP = 20, 9, 7  # px of a rank's compute lane, of all others together, and below a rank
# Colours of a pipeline's boxes: of a rank's first chunk of the model, and, paler, of the next.
SHADES = {
    "forward": (style.ROLE["forward"], "#99C7E0"),
    "backward": (style.ROLE["backward"], "#EEBF99"),
    "backward-input": (style.ROLE["backward"], "#EEBF99"),
    "backward-weight": (style.ROLE["optimizer"], "#99D8C7"),
}
KINDS = {"backward-input": "B, input half of a backward", "backward-weight": "W, weight half"}
WAITING = style.GREY + "33"  # nearly transparent
# Fill and edge of a role; idle is hollow, so that its name can be read on it.
LOOKS = {role: (color, "none") for role, color in style.ROLE.items()} | {
    "idle": ("none", style.GREY)
}
# What is drawn for a span: left and wide in seconds, top and high in px.
Box = namedtuple("Box", "left wide top high fill edge text", defaults=[""])


def gantt(timeline: Timeline) -> Picture:
    """A row per rank, a thin one below it for other lanes than "compute"; `Timeline` draws itself with this."""
    ranks, says, boxes = timeline.ranks, finding(timeline), []
    others = sorted({s.lane for s in timeline.spans} - {"compute"})
    row = HIGH + GAP + (THIN + 2) * bool(others)
    for i, rank in enumerate(ranks):
        mine = [s for s in timeline.spans if s.rank == rank]
        boxes += [
            Box(s.start - timeline.start, s.seconds, row * i, HIGH, *LOOKS[s.role], s.name)
            for s in mine
            if s.lane == "compute"
        ]
        thin = [s for s in mine if s.lane != "compute"]
        # What overlaps, as buckets under way at once do, lies one above the other.
        levels = 3 if any(after.start < before.end for before, after in pairwise(thin)) else 1
        boxes += [
            Box(
                s.start - timeline.start,
                s.seconds,
                row * i + HIGH + 2 + n % levels * THIN / levels,
                THIN / levels - (levels > 1),
                *LOOKS[s.role],
            )
            for n, s in enumerate(thin)
        ]
    looks = {
        role: LOOKS[role] for role in sorted({s.role for s in timeline.spans}, key=[*LOOKS].index)
    }
    alt = (
        f"{timeline.title}{': ' if timeline.title else ''}Gantt chart of {len(timeline.spans):,} spans of "
        f"{len(ranks)} rank{'s' if len(ranks) != 1 else ''} over {style.duration(timeline.seconds, 4)}. {says}."
    )
    return _chart(
        {says: (ranks, boxes)},
        row,
        timeline.seconds,
        looks,
        title=timeline.title,
        alt=alt,
        foot=f"Thin rows: {', '.join(others)}." if others else "",
    )


def pipelines(
    timelines: Mapping[str, Timeline], *, title: str = "", foot: str = "", unit: str = "s"
) -> Picture:
    """Pipelines below each other on one axis of time (in `unit`), each box with the number of its micro-batch."""
    panels = {
        f"{name}: {timeline.idle():.1%} of the time is waiting": (
            timeline.ranks,
            _pipeline(timeline),
        )
        for name, timeline in timelines.items()
    }
    names = {s.name.split()[0] for timeline in timelines.values() for s in timeline.spans}
    looks = {
        KINDS.get(kind, kind): (fill, "none") for kind, (fill, _) in SHADES.items() if kind in names
    }
    ranks = max(len(timeline.ranks) for timeline in timelines.values())
    return _chart(
        panels,
        HIGH + 4,
        max(timeline.seconds for timeline in timelines.values()),
        looks | {"waiting": (WAITING, style.GREY)},
        title=title,
        foot=foot,
        unit=unit,
        alt=f"{title or 'Pipeline'}. Gantt chart of {ranks} ranks. {'; '.join(panels)}. {foot}".strip(),
    )


def finding(timeline: Timeline) -> str:
    """What the chart shows, in one sentence."""
    if not timeline.seconds:
        return "No spans were recorded"
    if talk := sum(timeline.busy(rank, "communication") for rank in timeline.ranks):
        return f"{timeline.overlap() / talk:.0%} of the communication happens while the same rank computes"
    takes = Counter()
    for s in timeline.spans:
        takes[s.role if s.role != "other" else s.name] += s.seconds * (s.role != "idle")
    (first, most), *_ = takes.most_common(1)
    waits = f", ranks wait {idle:.0%} of it" if (idle := timeline.idle()) >= 0.1 else ""
    return f"{first.capitalize()} takes {most / (len(timeline.ranks) * timeline.seconds):.0%} of the time{waits}"


def _pipeline(timeline: Timeline) -> list[Box]:
    """Every second chunk is pale, with an edge, because pale is hard to see on white; behind them all is waiting."""
    tops = {rank: i * (HIGH + 4) for i, rank in enumerate(timeline.ranks)}
    boxes = [Box(0, timeline.seconds, top, HIGH, WAITING, "none") for top in tops.values()]
    for s in timeline.spans:
        kind, *words = s.name.split()  # "forward 3 of part 5"
        if s.lane == "compute" and kind in SHADES:
            odd = int(words[-1]) // len(tops) % 2
            boxes.append(
                Box(
                    s.start - timeline.start,
                    s.seconds,
                    tops[s.rank],
                    HIGH,
                    SHADES[kind][odd],
                    SHADES[kind][0] if odd else "none",
                    words[0],
                )
            )
    return boxes


def _chart(
    panels: Mapping[str, tuple[tuple[int, ...], list[Box]]],
    row: float,
    seconds: float,
    looks: Mapping[str, tuple[str, str]],
    *,
    title: str,
    foot: str,
    alt: str,
    unit: str = "s",
) -> Picture:
    """Panels, (ranks, boxes) below their headings, on one time axis; `row`: px of a rank; `looks`: the legend."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    seconds, width, bottom = seconds or 1.0, style.WIDTH, FOOT + LINE * bool(foot)
    heights = [max(1, row * len(ranks)) for ranks, _ in panels.values()]
    top = LINE * bool(title) + 4 + HEAD
    height = top + sum(heights) + HEAD * (len(panels) - 1) + bottom
    figure = blank(width, height)
    axes = figure.subplots(
        len(panels),
        squeeze=False,
        sharex=True,
        gridspec_kw={
            "left": LEFT / width,
            "right": 1 - RIGHT / width,
            "top": 1 - top / height,
            "bottom": bottom / height,
            "hspace": HEAD * len(panels) / sum(heights),
            "height_ratios": heights,
        },
    )[:, 0]
    unit, scale = ("ms", 1000) if unit == "s" and seconds < 10 else (unit, 1)
    px = (width - LEFT - RIGHT) / seconds
    for ax, high, (heading, (ranks, boxes)) in zip(axes, heights, panels.items(), strict=True):
        boxes, corners = (
            sorted(boxes, key=lambda b: -b.wide),
            [],
        )  # what is inside another lies on top
        for b in boxes:
            seam = 0.9 / px if b.wide * px > 4 else 0  # to the next box
            left, right, low = scale * b.left, scale * (b.left + b.wide - seam), b.top + b.high
            corners.append([(left, b.top), (right, b.top), (right, low), (left, low)])
            if b.text and b.wide * px > 7 * len(b.text) + 3:
                color = style.GREY if b.fill == "none" else style.ink(b.fill)
                ax.text(
                    scale * (b.left + b.wide / 2),
                    b.top + b.high / 2,
                    b.text,
                    ha="center",
                    va="center_baseline",
                    color=color,
                    fontsize=style.SMALL * 0.72,
                    parse_math=False,
                )
        # One collection: an artist for each box would take matplotlib minutes.
        ax.add_collection(
            PolyCollection(corners, fc=[b.fill for b in boxes], ec=[b.edge for b in boxes], lw=0.7)
        )
        ax.set_title(heading, loc="left", pad=4, **FONTS)
        ax.set_yticks(
            [row * i + HIGH / 2 for i in range(len(ranks))], [f"rank {rank}" for rank in ranks]
        )
        ax.set(xlim=(0, scale * seconds), ylim=(high, 0), facecolor="none")
        ax.tick_params(length=0, labelcolor=style.GREY, labelsize=FONTS["fontsize"])
        ax.grid(axis="x", color=style.GREY, alpha=0.3, lw=0.7)
        ax.set_axisbelow(True)
        ax.spines[:].set_visible(False)
    axes[-1].set_xlabel(f"time ({unit})", labelpad=2, **FONTS)
    axes[-1].xaxis.set_major_formatter("{x:,g}")
    figure.text(
        8 / width, 1 - 6 / height, title, va="top", **FONTS | {"fontsize": 9.7, "weight": "bold"}
    )
    figure.text(8 / width, 5 / height, foot, **FONTS)
    figure.legend(
        [Patch(fc=fill, ec=edge, lw=0.8) for fill, edge in looks.values()],
        looks,
        ncols=len(looks) or 1,
        loc="lower left",
        bbox_to_anchor=(4 / width, LINE * bool(foot) / height),
        frameon=False,
        fontsize=FONTS["fontsize"],
        labelcolor=style.GREY,
        handlelength=0.9,
        handleheight=0.9,
        borderpad=0.2,
    )
    return Picture("", alt, png=to_png(figure))
