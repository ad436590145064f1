"""Curves in panels: drawn once, in px, and written as an SVG within milliseconds for live frames,
or as a PNG to keep.

Panels are {panel: {rank or name: (x values, y values)}}, side by side, with one legend below. A
line ends in its last value (of more than four lines the outermost two do); it has a gap where a
value is not finite, or has no logarithm, and begins anew where x goes back.
"""

import html
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import style
from ..style import as_float
from .picture import FONTS, Picture, sheet, to_png

Panel = Mapping[int | str, tuple[Sequence[float], Sequence[float]]]
Panels = Mapping[str, Panel]
Point = tuple[float, float]
Stretch = list[Point]  # a line without a gap
Series = list[Stretch]  # of one rank or name in one panel
Look = tuple[str, str]  # colour, dashes

POINTS = 240  # drawn of a series: more than a panel has pixels adds nothing
HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 226, 26, 40, 50, 70  # of a panel, px
LIMIT = sys.float_info.max
HIGH = HEIGHT - TOP - BOTTOM  # of what the curves are drawn in, px
GAP, LINE = 4, 20  # between panels; height of a line of text above and below them, px
GRID = f'stroke="currentColor" stroke-opacity="{style.GRID}"'


@dataclass
class Drawing:
    """Lines and texts, in px from the top left; a line without a colour is grey, one of a single
    point is a dot.
    """

    width: int
    height: int
    # Points, colour, width, dashes.
    lines: list[tuple[list[Point], str, float, str]] = field(default_factory=list)
    # x, baseline, text, anchor, bold.
    texts: list[tuple[float, float, str, str, bool]] = field(default_factory=list)

    def svg(self, alt: str) -> str:
        drawn = []
        for points, color, width, dash in self.lines:
            path = "M" + " ".join([f"{x:.1f} {y:.1f}" for x, y in points])
            if len(points) == 1:
                path += "h0"
            look = f'stroke="{color}"' if color else GRID
            size = f'stroke-width="{width}" stroke-dasharray="{dash}"'
            drawn.append(f'<path d="{path}" {look} {size}/>')

        for x, y, text, anchor, bold in self.texts:
            look = 'font-weight="600"' if bold else f'fill-opacity="{style.QUIET}"'
            at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" stroke="none"'
            drawn.append(f'<text {at} {look} fill="currentColor">{html.escape(text)}</text>')

        look = f"width:{self.width}px;max-width:100%;font:{style.TEXT}px {style.FONT}"
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {self.width} {self.height}" {style.alt(alt)} style="{look}" fill="none" '
            f'stroke-linejoin="round" stroke-linecap="round">{"".join(drawn)}</svg>'
        )

    def png(self) -> bytes:
        """At twice the pixels, transparent, its text readable on white and on black."""
        page = sheet(self.width, self.height)
        for points, color, width, dash in self.lines:
            dashes: Any = "-"
            if dash:  # px -> widths of the line
                dashes = (0, [float(length) / width for length in dash.split()])
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

        sides = {"start": "left", "middle": "center", "end": "right"}
        for x, y, text, anchor, bold in self.texts:
            weight = "bold" if bold else "normal"
            page.text(x, y, " ".join(text.split()), ha=sides[anchor], fontweight=weight, **FONTS)
        return to_png(page.figure)


@dataclass
class Axis:
    """From `low` to `high`, with the text of each of its marks; `start` and `length`: where it
    lies, in px from the left or the top.
    """

    low: float
    high: float
    log: bool
    marks: dict[float, str]
    start: float = 0
    length: float = 1  # negative where it goes up

    def at(self, value: float) -> float:
        """Where this value lies, in px: at an end if it is beyond it."""
        low, high = self.low, self.high
        value = min(high, max(low, value))
        if self.log:
            low, value, high = map(math.log10, (low, value, high))
        # In halves, because the distance of two floats may be none.
        share = (value / 2 - low / 2) / (high / 2 - low / 2)
        return self.start + self.length * share


def axis(values: Sequence[float], *, log: bool, tight: bool = False) -> Axis:
    """An axis with about five round numbers: 1, 2 or 5 times a power of ten.

    tight: it goes no further than the values do, unless it is logarithmic. Whole values get no
        fractions.
    """
    low, high = min(*values, 0.95 * LIMIT), max(values)
    if high - low <= max(1e-300, 1e-9 * max(abs(low), abs(high))):  # they are all one value
        margin = max(1, 1e-6 * abs(low))
        if log:
            low, high = low / 2 or low, high * 2
        elif tight:
            high += margin
        else:
            low, high = low - margin, high + margin
    low, high = max(low, -LIMIT), min(high, LIMIT)

    whole = all(float(value).is_integer() for value in values)
    marks = _log_marks(low, high) if log else _marks(low, high, whole=whole)
    every = math.ceil(len(marks) / 9)
    if log or not tight:
        low, high = min(low, marks[0]), max(high, marks[-1])
    marks = [mark for mark in marks if low <= mark <= high][::every]

    texts = {mark: style.number(mark) for mark in marks}
    if len(set(texts.values())) < len(texts):
        texts = {mark: f"{mark:.8g}" for mark in marks}
    return Axis(low, high, log, texts)


def _marks(low: float, high: float, *, whole: bool) -> list[float]:
    """Round numbers at equal distances, from one at or below `low` to one at or above `high`."""
    fifth = (high / 2 - low / 2) / 2.5  # their distance may be no float
    power = 10.0 ** math.floor(math.log10(fifth))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= 0.999999 * fifth)
    if whole:
        step = max(step, 1)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    marks = [i * step for i in range(first, last + 1)]
    return [mark for mark in marks if abs(mark) <= LIMIT]


def _log_marks(low: float, high: float) -> list[float]:
    """Powers of ten, of few decades their double and fivefold, too."""
    factors = (1, 2, 5) if high < 300 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [float(f"{factor}e{power}") for power in powers for factor in factors]
    marks = [mark for mark in marks if 0 < mark <= LIMIT]
    first = max([mark for mark in marks if mark <= low * 1.000001], default=low)
    last = min([mark for mark in marks if mark >= high * 0.999999], default=high)
    return [mark for mark in marks if first <= mark <= last]


def pieces(
    xs: Sequence[float], ys: Sequence[float], *, log_x: bool = False, log_y: bool = False
) -> Series:
    """A series as lines without gaps: of every stretch the lowest and the highest, so that no spike
    is lost.
    """
    found: Series = []
    before = math.inf
    for i in _thinned(ys):
        x, y = as_float(xs[i]), as_float(ys[i])
        lost = not (math.isfinite(x) and math.isfinite(y))
        if lost or (log_x and x <= 0) or (log_y and y <= 0):
            before = math.inf
            continue
        if x < before:
            found.append([])
        found[-1].append((x, y))
        before = x
    return found


def _thinned(ys: Sequence[float]) -> Iterable[int]:
    """Which points are drawn: of many the ends, and of every stretch the lowest and the highest."""
    n, stretches = len(ys), POINTS // 2 - 1
    if n <= POINTS:
        return range(n)

    size = [math.inf if y != y else y for y in ys].__getitem__  # a gap has to show
    chosen = {0, n - 1}
    for k in range(stretches):
        stretch = range(k * n // stretches, (k + 1) * n // stretches)
        chosen |= {min(stretch, key=size), max(stretch, key=size)}
    return sorted(chosen)


def draw(
    panels: Panels,
    *,
    title: str = "",
    x_title: str = "step",
    total: float | None = None,
    log_x: bool = False,
    log_y: bool = False,
    markers: bool = False,
    named: bool = False,
    phases: Mapping[str, float] | None = None,
    foot: str = "",
    unit: str = "rank",
) -> Drawing:
    """Lay out the panels, three in a row at most; x goes up to `total` at least, and `foot` is a
    line below. The y axis of a panel whose name ends in "(log)" is logarithmic.

    named: a line ends in its name, and there is no legend.
    phases: {name: where it begins on x}, marked in every panel.
    """
    looks = _looks(panels)
    logs = {name: log_y or name.endswith("(log)") for name in panels}
    drawn = {
        name: {key: pieces(*points, log_x=log_x, log_y=logs[name]) for key, points in panel.items()}
        for name, panel in panels.items()
    }
    xs = [x for panel in drawn.values() for x, _ in _every_point(panel)]
    if total and 0 < total <= LIMIT:
        xs.append(total)
    across = axis(xs or [1], log=log_x, tight=True)

    columns = len(panels) if len(panels) <= 3 else 2
    rows = math.ceil(len(panels) / columns)
    each = {1: 560, 3: 250}.get(len(panels), 376)  # px of a panel
    right = 140 if named else RIGHT  # px; a name is longer than a number
    down = LINE if title else 0
    drawing = Drawing(columns * (each + GAP) - GAP, down + rows * (HEIGHT + GAP))
    drawing.texts.append((8, 14, title, "start", True))

    for i, (name, panel) in enumerate(drawn.items()):
        ys = [y for _, y in _every_point(panel)] or [1.0, 10.0]
        if name.endswith("/s") and not logs[name]:
            ys.append(0.0)  # a rate is seen against none at all
        left = i % columns * (each + GAP) + LEFT
        top = down + i // columns * (HEIGHT + GAP) + TOP
        x_axis = replace(across, start=left, length=each - LEFT - right)
        y_axis = replace(axis(ys, log=logs[name]), start=top + HIGH, length=-HIGH)
        most = each // 8  # letters
        heading = name if len(name) <= most else f"{name[: most - 1]}…"
        _draw_axes(drawing, x_axis, y_axis, heading, x_title)
        _draw_phases(drawing, phases or {}, x_axis, top)

        placed = {
            key: [[(x_axis.at(x), y_axis.at(y)) for x, y in stretch] for stretch in series]
            for key, series in panel.items()
        }
        for key, series in placed.items():
            _draw_series(drawing, series, looks[key], markers=markers)
        _write_ends(drawing, _ends(panels[name], placed, looks, x_axis, named=named))

    if not named:
        _write_legend(
            drawing,
            {f"{unit} {key}" if isinstance(key, int) else key: look for key, look in looks.items()},
        )
    if foot:
        drawing.texts.append((8, drawing.height + 14, foot, "start", False))
        drawing.height += LINE
    return drawing


def _every_point(panel: Mapping[int | str, Series]) -> list[Point]:
    return [point for series in panel.values() for stretch in series for point in stretch]


def _looks(panels: Panels) -> dict[int | str, Look]:
    """Colour and dashes of every rank, by its number, and of every name, by its place."""
    names = dict.fromkeys(key for series in panels.values() for key in series)
    keys = sorted(names, key=lambda key: key if isinstance(key, int) else 0)
    numbers = {key: key if isinstance(key, int) else i for i, key in enumerate(keys)}
    return {key: (style.color(number), style.dash(number)) for key, number in numbers.items()}


def _draw_axes(drawing: Drawing, x_axis: Axis, y_axis: Axis, name: str, x_title: str) -> None:
    """What is around the curves: headings, marks, and a line across for each mark of y."""
    left, right, bottom = x_axis.start, x_axis.start + x_axis.length, y_axis.start
    drawing.texts.append((left, bottom - HIGH - 12, name, "start", True))
    drawing.texts.append(((left + right) / 2, bottom + 34, x_title, "middle", False))
    for mark, text in x_axis.marks.items():
        drawing.texts.append((x_axis.at(mark), bottom + 16, text, "middle", False))
    for mark, text in y_axis.marks.items():
        y = y_axis.at(mark)
        drawing.texts.append((left - 7, y + 4, text, "end", False))
        drawing.lines.append(([(left, y), (right, y)], "", 1, ""))


def _draw_phases(drawing: Drawing, phases: Mapping[str, float], x_axis: Axis, top: float) -> None:
    """A line down and a name where each of them begins."""
    for phase, begin in phases.items():
        x = x_axis.at(begin)
        drawing.lines.append(([(x, top), (x, top + HIGH)], style.GREY, 1, "2 3"))
        drawing.texts.append((x + 4, top + 11, phase, "start", False))


def _draw_series(drawing: Drawing, series: Series, look: Look, *, markers: bool) -> None:
    color, dash = look
    for stretch in series:
        drawing.lines.append((stretch, color, 1.8, dash))
        if markers or len(stretch) == 1:
            drawing.lines += [([point], color, 6, "") for point in stretch]


def _ends(
    panel: Panel,
    placed: Mapping[int | str, Series],
    looks: Mapping[int | str, Look],
    x_axis: Axis,
    *,
    named: bool,
) -> dict[str, tuple[float, float, str]]:
    """What stands at the ends of lines, with place and colour: names, or last values."""
    furthest = max((xs[-1] for xs, _ in panel.values() if xs), default=0)
    ends: dict[str, tuple[float, float, str]] = {}
    for key, series in placed.items():
        if not series:
            continue
        xs, ys = panel[key]
        if not named and x_axis.at(furthest) - x_axis.at(xs[-1]) >= RIGHT:
            continue  # a line that ends among others has no value there
        text = str(key) if named else style.number(as_float(ys[-1]))
        ends.setdefault(text, (*series[-1][-1], looks[key][0]))

    if len(ends) > 4 and not named:
        outermost = sorted(ends, key=lambda text: ends[text][1])
        ends = {text: ends[text] for text in (outermost[0], outermost[-1])}
    return ends


def _write_ends(drawing: Drawing, ends: dict[str, tuple[float, float, str]]) -> None:
    """Last values or names, with lines to them from where their series end: those of ends that are
    near each other stand in a column, to the right of the last.
    """
    before, above = -math.inf, 0.0
    for text, (x, y, color) in sorted(ends.items(), key=lambda end: -end[1][1]):  # the lowest first
        last = max(end for end, _, _ in ends.values() if end - x < RIGHT)
        level = y + 6 if x < last else y  # a line to the right passes below the other ends
        if last == before:
            level = min(level, above)
        left = last + 8
        drawing.lines.append(([(x, y), (left, level)], style.GREY, 1, ""))
        drawing.lines.append(([(left, level - 3), (left, level + 3)], color, 3, ""))
        drawing.texts.append((left + 5, level + 4, text, "start", True))
        before, above = last, level - 13


def _write_legend(drawing: Drawing, names: dict[str, Look]) -> None:
    """Who is who, below the panels, where there are several."""
    if len(names) < 2:
        return
    cell = 50 + 6.6 * max(map(len, names))  # px: as wide as the longest needs
    beside = max(1, min(6, int(drawing.width / cell)))
    for i, (name, (color, dash)) in enumerate(names.items()):
        x, y = 8 + i % beside * cell, drawing.height + i // beside * LINE + 14
        drawing.lines.append(([(x, y - 4), (x + 26, y - 4)], color, 2, dash))
        drawing.texts.append((x + 33, y, name, "start", False))
    drawing.height += LINE * math.ceil(len(names) / beside)


def curves_png(
    panels: Panels,
    *,
    alt: str,
    title: str = "",
    x_title: str = "step",
    log_x: bool = False,
    log_y: bool = False,
    markers: bool = False,
    named: bool = False,
    phases: Mapping[str, float] | None = None,
    foot: str = "",
) -> Picture:
    """Curves, a panel each: {panel: {rank or name: (x values, y values)}}, side by side; `foot` is
    a line below.

    Args:
        named: a line ends in its name instead of its last value, and there is no legend.
        phases: {name: where it begins on x}, marked in every panel.
    """
    drawing = draw(
        panels,
        title=title,
        x_title=x_title,
        log_x=log_x,
        log_y=log_y,
        markers=markers,
        named=named,
        phases=phases,
        foot=foot,
    )
    return Picture("", f"{title}: {alt}" if title else alt, png=drawing.png())
