"""A timeline as a Gantt chart: text at its own size at any width, thousands of spans in a small picture."""

from __future__ import annotations

import html
from collections import Counter
from typing import NamedTuple

from . import style
from ._axes import text_of, tick_texts, ticks
from .timeline import Span, Timeline

UNITS = 1000  # width of the drawing in its own units, stretched to the page
LANE, THIN, GAP = 20, 8, 8  # heights of a compute lane and of any other, and the space below a rank, px
MOST = 3500  # bars drawn; with more spans, short neighbours share a bar
TOOLTIPS = 300  # up to so many bars say their name and time under the pointer


class Bar(NamedTuple):
    """One or more spans of one lane, in drawing units."""

    left: float
    right: float
    role: str
    spans: list[Span]


def bars_of(spans: list[Span], start: float, scale: float, least: float) -> list[Bar]:
    """Spans at least `least` units wide as they are; shorter neighbours share a bar in the role that lasts longest."""
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


def draw(timeline: Timeline) -> tuple[str, str]:
    """(HTML, description) of the chart."""
    ranks, lanes, seconds = timeline.ranks, timeline.lanes, timeline.seconds or 1e-9
    says = finding(timeline)
    if not ranks:
        return f'<div style="font:{style.TEXT}px {style.FONT}">{says}.</div>', f"{says}."
    rows = {(r, lane): [s for s in timeline.spans if s.rank == r and s.lane == lane] for r in ranks for lane in lanes}
    least = 1.0
    while True:
        drawn = {key: bars_of(spans, timeline.start, UNITS / seconds, least) for key, spans in rows.items()}
        count = sum(map(len, drawn.values()))
        if count <= MOST:
            break
        least *= 1.5
    merged = sum(len(b.spans) for row in drawn.values() for b in row if len(b.spans) > 1)
    alt = (f"{timeline.title + ': ' if timeline.title else ''}Gantt chart of {len(timeline.spans):,} spans of "
           f"{len(ranks)} rank{'s' if len(ranks) != 1 else ''} over {1000 * timeline.seconds:.1f} ms. {says}.")
    shapes, names, labels, y = [], [], [], 0
    for rank in ranks:
        labels.append(f'<div style="position:absolute;right:8px;top:{y + 3}px">rank {rank}</div>')
        for lane in lanes:
            height = LANE if lane == lanes[0] else THIN
            row = drawn[rank, lane]
            shapes.append(_shapes(row, y, height, count <= TOOLTIPS))
            if height == LANE:
                names += [_name(bar, y) for bar in row if bar.right - bar.left > 80 and len(bar.spans) == 1]
            y += height + 2
        y += GAP
    high = max(y - GAP, 1)
    span, unit = (1000 * seconds, "ms") if seconds < 10 else (seconds, "s")
    marks = [t for t in ticks(0, span) if t <= span * 1.0001]
    grid = "".join(f"M{t / span * UNITS:.1f} 0v{high}" for t in marks)
    axis = "".join(f'<div style="position:absolute;left:{100 * t / span:.2f}%;transform:translateX(-50%)">{text}</div>'
                   for t, text in zip(marks, tick_texts(marks), strict=True))
    note = f"{merged:,} spans too short to see share bars with their neighbours. " if merged else ""
    thin = f"Thin rows: {', '.join(lanes[1:])}. " if len(lanes) > 1 else ""
    page = (
        f'<div {style.alt(alt)} style="max-width:{style.WIDTH}px;font:{style.SMALL}px {style.FONT};padding:4px 8px">'
        f'<div style="font-weight:600;font-size:{style.TEXT + 1}px;padding-bottom:6px">'
        f'{html.escape(timeline.title + ": " + says if timeline.title else says)}</div>'
        f'<div style="display:flex"><div style="position:relative;flex:0 0 56px">{"".join(labels)}</div>'
        f'<div style="position:relative;flex:1;margin-right:12px">'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {UNITS} {high}" preserveAspectRatio="none" '
        f'style="display:block;width:100%;height:{high}px"><path d="{grid}" stroke="currentColor" '
        f'stroke-opacity="{style.GRID}" vector-effect="non-scaling-stroke"/>{"".join(shapes)}</svg>{"".join(names)}'
        f'<div style="position:relative;height:18px;padding-top:3px;opacity:{style.QUIET}">{axis}</div>'
        f'<div style="text-align:center;opacity:{style.QUIET}">time ({unit})</div></div></div>'
        f"{_legend({b.role for row in drawn.values() for b in row})}"
        f'<div style="padding:2px 0 0 56px;opacity:{style.QUIET}">{thin}{note}</div></div>'
    )
    return page, alt


def _shapes(row: list[Bar], y: int, height: int, tooltips: bool) -> str:
    """Bars as rectangles that say what they are, or, where there are many, as one path per role."""
    by_role: dict[str, list[str]] = {}
    for bar in sorted(row, key=lambda b: b.left - b.right):  # the longest first, so that what is inside lies on top
        wide = bar.right - bar.left
        wide -= min(1.2, 0.2 * wide)  # a seam between neighbours
        if tooltips:
            names = ", ".join(dict.fromkeys(s.name for s in bar.spans[:4]))
            took = 1000 * sum(s.seconds for s in bar.spans)
            shape = (f'<rect x="{bar.left:.1f}" y="{y}" width="{wide:.1f}" height="{height}">'
                     f"<title>{html.escape(names)}: {text_of(took)} ms</title></rect>")
        else:
            shape = f"M{bar.left:.1f} {y}h{wide:.1f}v{height}h-{wide:.1f}z"
        by_role.setdefault(bar.role, []).append(shape)
    out = []
    for role, shapes in by_role.items():
        faint = ' fill-opacity=".35"' if role == "idle" else ""
        inside = "".join(shapes) if tooltips else f'<path d="{"".join(shapes)}"/>'
        out.append(f'<g fill="{style.ROLE[role]}"{faint}>{inside}</g>')
    return "".join(out)


def _name(bar: Bar, y: int) -> str:
    color = "inherit" if bar.role == "idle" else "#fff"
    left, width = bar.left / 10, (bar.right - bar.left) / 10  # % of the drawing
    return (f'<div style="position:absolute;left:{left:.2f}%;width:{width:.2f}%;top:{y}px;'
            f"line-height:{LANE}px;color:{color};text-align:center;overflow:hidden;text-overflow:ellipsis;"
            f'white-space:nowrap;pointer-events:none">{html.escape(bar.spans[0].name)}</div>')


def _legend(roles: set[str]) -> str:
    items = []
    for role in (r for r in style.ROLE if r in roles):
        faint = ";opacity:.35" if role == "idle" else ""
        items.append(f'<span style="white-space:nowrap"><span style="display:inline-block;width:10px;height:10px;'
                     f'border-radius:2px;background:{style.ROLE[role]}{faint}"></span> {role}</span>')
    return f'<div style="display:flex;flex-wrap:wrap;gap:2px 16px;padding:4px 0 0 56px">{"".join(items)}</div>'
