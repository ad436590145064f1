"""Curves in panels: drawn once, in px, and written as an SVG within milliseconds for live frames,
or as a PNG to keep.

Panels are {panel: {rank or name: (x values, y values)}}, side by side, with one legend below. A
line ends in its last value (of more than four lines the outermost two do); it has a gap where a
value is not finite, beyond 1e200, or has no logarithm, and begins anew where x goes back.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import style
from ..style import as_float
from .picture import FONTS, Picture, sheet, to_png

Key = int | str  # a rank or a name
Panel = Mapping[Key, tuple[Sequence[float], Sequence[float]]]
Panels = Mapping[str, Panel]
Point = tuple[float, float]
Series = list[list[Point]]  # a line a stretch, without a gap
Look = tuple[str, str]  # colour, dashes
End = tuple[float, float, str]  # of a line: x, y, colour

POINTS = 240  # drawn of a series: more than a panel has pixels adds nothing
HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 226, 26, 40, 50, 70  # of a panel, px
HIGH = HEIGHT - TOP - BOTTOM  # of what the curves are drawn in, px
GAP, LINE = 4, 20  # between panels; height of a line of text above and below them, px
GRID = style.GREY + "4d"  # a third of it
MOST = 1e200  # that is drawn, and with a logarithm 1 / MOST: far from where floats end


@dataclass
class Drawing:
    """Lines and texts, in px from the top left; a line of a single point is a dot."""

    width: int
    height: int
    # Points, colour, width, dashes.
    lines: list[tuple[list[Point], str, float, str]] = field(default_factory=list)
    # x, baseline, text, anchor, bold.
    texts: list[tuple[float, float, str, str, bool]] = field(default_factory=list)

    def line(self, points: list[Point], color: str, width: float = 1, dash: str = "") -> None:
        self.lines.append((points, color, width, dash))

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", *, bold: bool = False
    ) -> None:
        self.texts.append((x, y, text, anchor, bold))

    def svg(self, alt: str) -> str:
        drawn = []
        for points, color, width, dash in self.lines:
            path = "M" + " ".join([f"{x:.1f} {y:.1f}" for x, y in points])
            if len(points) == 1:
                path += "h0"
            size = f'stroke-width="{width}" stroke-dasharray="{dash}"'
            drawn.append(f'<path d="{path}" stroke="{color}" {size}/>')

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
            look = {"color": color, "ls": dashes, "lw": size, "ms": size}
            marker = "o" if len(points) == 1 else ""
            page.plot(*zip(*points, strict=True), marker=marker, **look)

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
    marks: dict[float, str]
    start: float = 0
    length: float = 1  # negative where it goes up

    def at(self, value: float) -> float:
        """Where this value lies, in px: at an end if it is beyond it."""
        value = min(self.high, max(self.low, value))
        return self.start + self.length * (value - self.low) / (self.high - self.low)


def scaled(value: float, *, log: bool) -> float:
    """What an axis is linear in: the value or its logarithm, NaN where it is not drawn."""
    value = as_float(value)
    if not abs(value) <= MOST or (log and value < 1 / MOST):
        return math.nan
    return math.log10(value) if log else value


def axis(values: Sequence[float], *, log: bool = False, tight: bool = False) -> Axis:
    """An axis with about five round numbers: 1, 2 or 5 times a power of ten.

    log: the values are logarithms; powers of ten, of few decades their double and fivefold, too.
    tight: it goes no further than the values do, unless it is logarithmic. Whole values get no
        fractions.
    """
    low, high = min(values), max(values)
    if high - low <= max(1e-300, 1e-9 * max(abs(low), abs(high))):  # they are all one value
        margin = max(1, 1e-6 * abs(low))
        high += margin
        if log or not tight:
            low -= margin

    if log and high - low < 2.3:  # from 2.301 on there may be ten
        marks = _between_powers(low, high)
    elif log:
        marks = _marks(low, high, parts=7, whole=True)
    else:
        marks = _marks(low, high, parts=5, whole=all(float(value).is_integer() for value in values))
    if log or not tight:
        low, high = min(low, marks[0]), max(high, marks[-1])
    marks = [mark for mark in marks if low <= mark <= high]

    numbers = {mark: 10.0**mark if log else mark for mark in marks}
    texts = {mark: style.number(number) for mark, number in numbers.items()}
    if len(set(texts.values())) < len(texts):
        texts = {mark: f"{number:.8g}" for mark, number in numbers.items()}
    return Axis(low, high, texts)


def _marks(low: float, high: float, *, parts: int, whole: bool) -> list[float]:
    """Round numbers at equal distances, from one at or below `low` to one at or above `high`."""
    part = (high - low) / parts
    power = 10.0 ** math.floor(math.log10(part))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= 0.999999 * part)
    if whole:
        step = max(step, 1)
    first = math.floor(low / step + 1e-5)  # as exact as `step`, so that there are few
    last = math.ceil(high / step - 1e-5)
    return [i * step for i in range(first, last + 1)]


def _between_powers(low: float, high: float) -> list[float]:
    """Logarithms of powers of ten, their double and fivefold, from one at or below `low` to one at
    or above `high`.
    """
    powers = range(math.floor(low), math.ceil(high) + 1)
    marks = [power + math.log10(factor) for power in powers for factor in (1, 2, 5)]
    first = max(mark for mark in marks if mark <= low + 1e-9)
    last = min(mark for mark in marks if mark >= high - 1e-9)
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
        x, y = scaled(xs[i], log=log_x), scaled(ys[i], log=log_y)
        if math.isnan(x) or math.isnan(y):
            before = math.inf
            continue
        if x < before:
            found.append([])
        found[-1].append((x, y))
        before = x
    return found


def _thinned(ys: Sequence[float]) -> Iterable[int]:
    """Which points are drawn: of many the ends, and of every stretch the lowest, the highest and a
    gap.
    """
    n, stretches = len(ys), POINTS // 2 - 1
    if n <= POINTS:
        return range(n)

    chosen = {0, n - 1}
    for k in range(stretches):
        stretch = range(k * n // stretches, (k + 1) * n // stretches)
        gaps = [i for i in stretch if ys[i] != ys[i]]  # nan
        numbers = [i for i in stretch if ys[i] == ys[i]]
        chosen |= {*gaps[:1]}
        if numbers:
            chosen |= {min(numbers, key=ys.__getitem__), max(numbers, key=ys.__getitem__)}
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
    """Lay out the panels, three in a row at most. Arguments are those of `curves_png`, and

    Args:
        total: x goes up to it at least, if it is not logarithmic.
        unit: what a series is whose key is a number: "rank", "core".
    """
    looks = _looks(panels)
    logs = {name: log_y or name.endswith("(log)") for name in panels}
    drawn = {
        name: {key: pieces(*points, log_x=log_x, log_y=logs[name]) for key, points in panel.items()}
        for name, panel in panels.items()
    }
    xs = [x for panel in drawn.values() for x, _ in _every_point(panel)]
    if total and 0 < total <= MOST:
        xs.append(total)
    across = axis(xs or [1], log=log_x, tight=True)

    columns = len(panels) if len(panels) <= 3 else 2
    rows = math.ceil(len(panels) / columns)
    each = {1: 560, 3: 250}.get(len(panels), 376)  # px of a panel
    right = 140 if named else RIGHT  # px; a name is longer than a number
    down = LINE if title else 0
    drawing = Drawing(columns * (each + GAP) - GAP, down + rows * (HEIGHT + GAP))
    drawing.text(8, 14, title, bold=True)

    for i, (name, panel) in enumerate(drawn.items()):
        ys = [y for _, y in _every_point(panel)] or [0, 1]
        left = i % columns * (each + GAP) + LEFT
        top = down + i // columns * (HEIGHT + GAP) + TOP
        x_axis = replace(across, start=left, length=each - LEFT - right)
        y_axis = replace(axis(ys, log=logs[name]), start=top + HIGH, length=-HIGH)
        most = each // 8  # letters
        heading = name if len(name) <= most else f"{name[: most - 1]}…"
        _draw_axes(drawing, x_axis, y_axis, heading, x_title)
        for phase, begin in (phases or {}).items():
            x = x_axis.at(scaled(begin, log=log_x))
            drawing.line([(x, top), (x, top + HIGH)], style.GREY, 1, "2 3")
            drawing.text(x + 4, top + 11, phase)

        placed = {
            key: [[(x_axis.at(x), y_axis.at(y)) for x, y in stretch] for stretch in series]
            for key, series in panel.items()
        }
        for key, series in placed.items():
            _draw_series(drawing, series, looks[key], markers=markers)
        _write_ends(drawing, _ends(panels[name], placed, looks, named=named), top)

    if not named:
        _write_legend(
            drawing,
            {f"{unit} {key}" if isinstance(key, int) else key: look for key, look in looks.items()},
        )
    if foot:
        drawing.text(8, drawing.height + 14, foot)
        drawing.height += LINE
    return drawing


def _every_point(panel: Mapping[Key, Series]) -> list[Point]:
    return [point for series in panel.values() for stretch in series for point in stretch]


def _looks(panels: Panels) -> dict[Key, Look]:
    """Colour and dashes of every rank, by its number, and of every name, by its place."""
    names = dict.fromkeys(key for series in panels.values() for key in series)
    keys = sorted(names, key=lambda key: key if isinstance(key, int) else 0)
    numbers = {key: key if isinstance(key, int) else i for i, key in enumerate(keys)}
    return {key: (style.color(number), style.dash(number)) for key, number in numbers.items()}


def _draw_axes(drawing: Drawing, x_axis: Axis, y_axis: Axis, name: str, x_title: str) -> None:
    """What is around the curves: headings, marks, and a line across for each mark of y."""
    left, right, bottom = x_axis.start, x_axis.start + x_axis.length, y_axis.start
    drawing.text(left, bottom - HIGH - 12, name, bold=True)
    drawing.text((left + right) / 2, bottom + 34, x_title, "middle")
    for mark, text in x_axis.marks.items():
        drawing.text(x_axis.at(mark), bottom + 16, text, "middle")
    for mark, text in y_axis.marks.items():
        y = y_axis.at(mark)
        drawing.text(left - 7, y + 4, text, "end")
        drawing.line([(left, y), (right, y)], GRID)


def _draw_series(drawing: Drawing, series: Series, look: Look, *, markers: bool) -> None:
    color, dash = look
    for stretch in series:
        drawing.line(stretch, color, 1.8, dash)
        if markers or len(stretch) == 1:
            drawing.lines += [([point], color, 6, "") for point in stretch]


def _ends(
    panel: Panel,
    placed: Mapping[Key, Series],
    looks: Mapping[Key, Look],
    *,
    named: bool,
) -> dict[str, End]:
    """What stands at the ends of lines, with place and colour: names, or last values."""
    ends: dict[str, End] = {}
    for key, series in placed.items():
        if series:
            _, ys = panel[key]
            text = str(key) if named else style.number(as_float(ys[-1]))
            ends.setdefault(text, (*series[-1][-1], looks[key][0]))

    if len(ends) > 4 and not named:
        lowest, *_, highest = sorted(ends, key=lambda text: -ends[text][1])
        ends = {text: ends[text] for text in (lowest, highest)}
    return ends


def _write_ends(drawing: Drawing, ends: dict[str, End], top: float) -> None:
    """Last values or names beside the ends of their lines, with lines to them."""
    lowest_first = sorted(ends.items(), key=lambda end: -end[1][1])
    levels = spread([y for _, (_, y, _) in lowest_first], top=top)
    for (text, (x, y, color)), level in zip(lowest_first, levels, strict=True):
        left = x + 8
        drawing.line([(x, y), (left, level)], style.GREY)
        drawing.line([(left, level - 3), (left, level + 3)], color, 3)
        drawing.text(left + 5, level + 4, text, bold=True)


def spread(heights: list[float], *, top: float, apart: float = 13) -> list[float]:
    """Heights in px from the top, the lowest first, moved until each is so far `apart` from the
    next, none above `top`.
    """
    levels: list[float] = []
    below = math.inf
    for above, height in zip(reversed(range(len(heights))), heights, strict=True):
        room = top + apart * above  # that those above need
        below = max(room, min(height, below - apart))
        levels.append(below)
    return levels


def _write_legend(drawing: Drawing, names: dict[str, Look]) -> None:
    """Who is who, below the panels, where there are several."""
    if len(names) < 2:
        return
    cell = 50 + 6.6 * max(map(len, names))  # px: as wide as the longest needs
    beside = max(1, min(6, int(drawing.width / cell)))
    for i, (name, (color, dash)) in enumerate(names.items()):
        x, y = 8 + i % beside * cell, drawing.height + i // beside * LINE + 14
        drawing.line([(x, y - 4), (x + 26, y - 4)], color, 2, dash)
        drawing.text(x + 33, y, name)
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
    """Curves, a panel each: {panel: {rank or name: (x values, y values)}}, side by side.

    Args:
        title: a line above the panels; `foot`: one below them.
        x_title: what the values of x are.
        log_x, log_y: whether axes are logarithmic. The y axis of a panel whose name ends in "(log)"
            always is.
        markers: whether every point is a dot, too.
        named: whether a line ends in its name instead of its last value, with no legend.
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
