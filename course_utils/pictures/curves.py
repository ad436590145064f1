"""Curves in panels: drawn once, in px, and written as an SVG within milliseconds for live frames, or as a PNG to keep.

Panels are {panel: {rank or name: (x values, y values)}}, side by side, with one legend below. A line ends in its last
value; it has a gap where a value is not finite, or has no logarithm, and begins anew where x goes back.
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .. import style
from .picture import FONTS, Picture, blank, to_png

Panels = Mapping[str, Mapping[int | str, tuple[Sequence[float], Sequence[float]]]]
Point = tuple[float, float]

POINTS = 240  # drawn of a series: more than a panel has pixels adds nothing
HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 226, 26, 40, 50, 60  # of a panel, px
GAP, LINE = 4, 20  # between panels; height of a line of text above and below them, px


@dataclass
class Drawing:
    """Lines and texts, in px from the top left; a line without a colour is grey, one of a single point is a dot."""

    width: int
    height: int
    lines: list[tuple[list[Point], str, float, str]] = field(
        default_factory=list
    )  # points, colour, width, dashes
    texts: list[tuple[float, float, str, str, bool]] = field(
        default_factory=list
    )  # x, baseline, text, anchor, bold

    def svg(self, alt: str) -> str:
        drawn = []
        for points, color, width, dash in self.lines:
            path = (
                "M"
                + " ".join(["%.1f %.1f" % point for point in points])  # noqa: UP031
                + "h0" * (len(points) == 1)
            )
            look = (
                f'stroke="{color}"'
                if color
                else f'stroke="currentColor" stroke-opacity="{style.GRID}"'
            )
            drawn.append(
                f'<path d="{path}" {look} stroke-width="{width}" stroke-dasharray="{dash}"/>'
            )
        for x, y, text, anchor, bold in self.texts:
            look = 'font-weight="600"' if bold else f'fill-opacity="{style.QUIET}"'
            at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" stroke="none"'
            drawn.append(f'<text {at} {look} fill="currentColor">{html.escape(text)}</text>')
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" {style.alt(alt)} '
            f'style="width:{self.width}px;max-width:100%;font:{style.TEXT}px {style.FONT}" fill="none" '
            f'stroke-linejoin="round" stroke-linecap="round">{"".join(drawn)}</svg>'
        )

    def png(self) -> bytes:
        """At twice the pixels, transparent, its text readable on white and on black."""
        figure, sides = (
            blank(self.width, self.height),
            {"start": "left", "middle": "center", "end": "right"},
        )
        page = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(self.height, 0))
        page.set_axis_off()
        for points, color, width, dash in self.lines:
            dashes = (
                (0, [float(length) / width for length in dash.split()]) if dash else "-"
            )  # in widths of the line
            size = 0.72 * width  # px -> points
            page.plot(
                *zip(*points, strict=True),
                lw=size,
                ls=dashes,
                marker="o" if len(points) == 1 else "",
                ms=size,
                color=color or style.GREY,
                alpha=1 if color else 0.3,
            )
        for x, y, text, anchor, bold in self.texts:
            page.text(
                x, y, text, ha=sides[anchor], fontweight="bold" if bold else "normal", **FONTS
            )
        return to_png(figure)


def axis(
    values: Sequence[float], *, log: bool, tight: bool = False
) -> tuple[dict[float, str], Callable]:
    """About five round numbers, 1, 2 or 5 times a power of ten, with their texts; and where a value lies, from 0 to 1.

    tight: it goes no further than the values do, unless it is logarithmic, and whole ones get no fractions.
    """
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = (low / 2, high * 2) if log else (low, low + 1) if tight else (low - 1, high + 1)
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = [
            m * 10.0**power for power in powers for m in ((1, 2, 5) if high < 300 * low else (1,))
        ]
        first = max(i for i, step in enumerate(steps) if step <= low * 1.000001)
        last = min(i for i, step in enumerate(steps) if step >= high * 0.999999)
        marks = steps[first : last + 1]
    else:
        raw = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999999)
        step = max(step, 1) if tight and all(isinstance(value, int) for value in values) else step
        marks = [
            i * step
            for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
        ]
    low, high = (low, high) if tight and not log else (marks[0], marks[-1])
    marks = [mark for mark in marks if low <= mark <= high][:: -(-len(marks) // 9)]
    texts = [style.number(mark) for mark in marks]
    if len(set(texts)) < len(texts):
        texts = [f"{mark:.8g}" for mark in marks]
    long = math.log(high / low) if log else high - low
    return dict(
        zip(marks, texts, strict=True)
    ), lambda value: (math.log(value / low) if log else value - low) / long


def pieces(
    xs: Sequence[float], ys: Sequence[float], *, log_x: bool = False, log_y: bool = False
) -> list[list[Point]]:
    """A series as lines without gaps: of every stretch the lowest and the highest, so that no spike is lost."""
    n, stretches, places = len(ys), POINTS // 2 - 1, range(len(ys))
    if n > POINTS:
        size = [math.inf if math.isnan(y) else y for y in ys].__getitem__  # a gap has to show
        parts = [range(k * n // stretches, (k + 1) * n // stretches) for k in range(stretches)]
        places = sorted(
            {0, n - 1}.union(*((min(part, key=size), max(part, key=size)) for part in parts))
        )
    found, before = [], math.inf
    for x, y in ((xs[i], ys[i]) for i in places):
        if math.isfinite(y) and not (log_x and x <= 0) and not (log_y and y <= 0):
            if x < before:
                found.append([])
            found[-1].append((x, y))
            before = x
        else:
            before = math.inf
    return found


def draw(
    panels: Panels,
    *,
    title: str = "",
    x_title: str = "step",
    total: float | None = None,
    log_x: bool = False,
    log_y: bool = False,
    markers: bool = False,
    foot: str = "",
    unit: str = "rank",
) -> Drawing:
    """Lay out the panels, three in a row at most; x goes up to `total` at least, and `foot` is a line below."""
    keys = dict.fromkeys(key for series in panels.values() for key in series)
    keys = sorted(keys, key=lambda key: key if isinstance(key, int) else 0)
    places = {key: key if isinstance(key, int) else i for i, key in enumerate(keys)}
    looks = {key: (style.color(place), style.dash(place)) for key, place in places.items()}
    cut = {
        name: {key: pieces(*points, log_x=log_x, log_y=log_y) for key, points in series.items()}
        for name, series in panels.items()
    }
    xs = [
        x for lines in cut.values() for line in lines.values() for piece in line for x, _ in piece
    ]
    x_marks, x_at = axis(xs + [total] * bool(total) or [1], log=log_x, tight=True)
    columns, each = len(panels) if len(panels) <= 3 else 2, {1: 560, 3: 250}.get(len(panels), 376)
    down, w, h = LINE * bool(title), each - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    drawing = Drawing(
        columns * (each + GAP) - GAP, down + -(-len(panels) // columns) * (HEIGHT + GAP)
    )
    drawing.texts.append((8, 14, title, "start", True))
    for i, (name, lines) in enumerate(cut.items()):
        left, top = i % columns * (each + GAP) + LEFT, down + i // columns * (HEIGHT + GAP) + TOP
        ys = [y for line in lines.values() for piece in line for _, y in piece] or [1.0, 10.0]
        ys += [0.0] * (name.endswith("/s") and not log_y)  # a rate is seen against none at all
        y_marks, y_at = axis(ys, log=log_y)
        drawing.texts += [
            (left, top - 12, name, "start", True),
            (left + w / 2, top + h + 34, x_title, "middle", False),
        ]
        drawing.texts += [
            (left + w * x_at(x), top + h + 16, text, "middle", False) for x, text in x_marks.items()
        ]
        for y, text in ((top + h - h * y_at(y), text) for y, text in y_marks.items()):
            drawing.texts.append((left - 7, y + 4, text, "end", False))
            drawing.lines.append(([(left, y), (left + w, y)], "", 1, ""))
        ends: dict[str, tuple[float, float, str]] = {}
        for key, line in lines.items():
            color, dash = looks[key]
            for piece in line:
                points = [(left + w * x_at(x), top + h - h * y_at(y)) for x, y in piece]
                drawing.lines.append((points, color, 1.8, dash))
                drawing.lines += [
                    ([point], color, 6, "") for point in points if markers or len(points) == 1
                ]
            if line:
                ends.setdefault(style.number(panels[name][key][1][-1]), (*points[-1], color))
        _write_ends(drawing, ends)
    _write_legend(
        drawing,
        {f"{unit} {key}" if isinstance(key, int) else key: look for key, look in looks.items()},
    )
    drawing.texts.append((8, drawing.height + 14, foot, "start", False))
    drawing.height += LINE * bool(foot)
    return drawing


def _write_ends(drawing: Drawing, ends: dict[str, tuple[float, float, str]]) -> None:
    """The last values, to the right of the lines' ends or a little above them; of more than 4, the outermost two."""
    lowest_first, before = sorted(ends.items(), key=lambda end: -end[1][1]), (-math.inf, 0.0)
    for text, (x, y, color) in (
        lowest_first if len(ends) <= 4 else (lowest_first[0], lowest_first[-1])
    ):
        y = min(y, before[1] - 13) if abs(x - before[0]) < RIGHT else y
        drawing.lines.append(([(x + 8, y - 3), (x + 8, y + 3)], color, 3, ""))
        drawing.texts.append((x + 13, y + 4, text, "start", True))
        before = x, y


def _write_legend(drawing: Drawing, names: dict[str, tuple[str, str]]) -> None:
    """Who is who, below the panels, where there are several."""
    if len(names) > 1:
        cell = 50 + 6.6 * max(map(len, names))  # px: as wide as the longest needs
        beside = max(1, min(6, int(drawing.width / cell)))
        for i, (name, (color, dash)) in enumerate(names.items()):
            x, y = 8 + i % beside * cell, drawing.height + i // beside * LINE + 14
            drawing.lines.append(([(x, y - 4), (x + 26, y - 4)], color, 2, dash))
            drawing.texts.append((x + 33, y, name, "start", False))
        drawing.height += LINE * -(-len(names) // beside)


def curves_png(
    panels: Panels,
    *,
    alt: str,
    title: str = "",
    x_title: str = "step",
    log_x: bool = False,
    log_y: bool = False,
    markers: bool = False,
    foot: str = "",
) -> Picture:
    """Curves, a panel each: {panel: {rank or name: (x values, y values)}}, side by side; `foot` is a line below."""
    drawing = draw(
        panels, title=title, x_title=x_title, log_x=log_x, log_y=log_y, markers=markers, foot=foot
    )
    return Picture("", alt, png=drawing.png())
