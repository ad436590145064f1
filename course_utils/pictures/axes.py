"""The arithmetic of a panel of curves: round ticks, thinned lines with honest gaps, labels that do not collide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from .. import style

Series = tuple[Sequence[float], Sequence[float]]

POINTS = 240  # drawn per series: more than a panel has pixels adds nothing
LABELLED = 4  # with more series, only the highest and the lowest last value are written


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """About `most` round numbers (1, 2 or 5 times a power of ten) that cover low..high; `whole`: no fractions."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(low) * 0.5 or 1.0
        low, high = low - room, high + room
    raw = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999999)
    if whole:
        step = max(1.0, step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def decades(low: float, high: float, most: int = 6) -> list[float]:
    """Numbers for a logarithmic axis that cover low..high: 1, 2 and 5 times powers of ten, or powers of ten alone."""
    for digits in ((1, 2, 5), (1,)):
        first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high))
        last += 2 + (last - first) // most
        steps = [d * 10.0**e for e in range(first, last + 1) for d in digits]
        start = max(i for i, v in enumerate(steps) if v <= low * 1.000001)
        stop = max(start + 1, min(i for i, v in enumerate(steps) if v >= high * 0.999999))
        jump = math.ceil((stop - start) / most)
        if jump == 1:
            break
    return steps[start : start + jump * math.ceil((stop - start) / jump) + 1 : jump]


def text_of(value: float) -> str:
    """A number as short as it can be read: 0.0312, 96.5, 1,437, 23k, 1.2M, 3e+13."""
    size = abs(value)
    if not math.isfinite(value) or (size and (size < 1e-3 or size >= 1e12)):
        return f"{value:.2g}"
    if size >= 1e4:
        return _short(value)
    return f"{value:,.0f}" if size >= 1e3 else f"{value:.3g}"


def _short(value: float) -> str:
    for power, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power * 0.99999:
            return f"{value / power:.3g}{letter}"
    return f"{value:.3g}"


def tick_texts(values: Sequence[float]) -> list[str]:
    """Numbers along an axis: all in one way, with as many digits as tell them apart."""
    if max(map(abs, values)) >= 1e4:
        texts = [_short(v) if abs(v) < 1e12 else text_of(v) for v in values]
    else:
        texts = [text_of(v) for v in values]
    digits = 3
    while len(set(texts)) < len(values) and digits < 12:
        digits += 1
        texts = [f"{v:.{digits}g}" for v in values]
    return texts


def thin(xs: Sequence[float], ys: Sequence[float], most: int = POINTS) -> list[tuple[int, float, float]]:
    """At most `most` points as (place, x, y): of every stretch the lowest and the highest, so that no spike is lost."""
    n = len(ys)
    if n <= most:
        return [(i, xs[i], ys[i]) for i in range(n)]
    keep = {0, n - 1}
    stretches = (most - 2) // 2
    for k in range(stretches):
        a, b = k * n // stretches, (k + 1) * n // stretches
        part = ys[a:b]
        low, high = min(part), max(part)
        if low - low or high - high or low != low or sum(part) != sum(part):  # something not finite in here
            keep.add(a + next(i for i, y in enumerate(part) if y - y != 0))  # its gap has to show
            finite = [y for y in part if y - y == 0]
            if finite:
                keep.add(a + part.index(max(finite)))
            continue
        keep.update((a + part.index(low), a + part.index(high)))
    return [(i, xs[i], ys[i]) for i in sorted(keep)]


def runs(points: list[tuple[int, float, float]], log_x: bool, log_y: bool) -> list[list[tuple[float, float]]]:
    """Points joined by lines: a gap where a value is not finite (or has no logarithm), or x goes back."""
    out: list[list[tuple[float, float]]] = [[]]
    for _, x, y in points:
        drawable = y - y == 0 and x - x == 0 and not (log_y and y <= 0) and not (log_x and x <= 0)
        if out[-1] and (not drawable or x < out[-1][-1][0]):
            out.append([])
        if drawable:
            out[-1].append((x, y))
    return [run for run in out if run]


def x_span(panels: Iterable[Mapping[int | str, Series]], *, total: float | None = None,
           log_x: bool = False) -> tuple[float, float]:
    """The x range that panels share, never empty; up to `total` at least."""
    lows, highs = [], [total] if total else []
    for series in panels:
        for xs, _ in series.values():
            good = [x for x in xs if x - x == 0 and (x > 0 or not log_x)]
            if good:
                lows.append(min(good))
                highs.append(max(good))
    low = min(lows, default=1.0 if log_x else 0)
    return low, max([*highs, low + (0 if log_x else 1)])


class Panel:
    """Axes of one panel: what is drawn, between which round numbers."""

    def __init__(self, name: str, series: Mapping[int | str, Series], *, x_range: tuple[float, float] | None = None,
                 log_x: bool = False, log_y: bool = False) -> None:
        self.name, self.log_x, self.log_y = name, log_x, log_y
        self.runs = {key: runs(thin(xs, ys), log_x, log_y) for key, (xs, ys) in series.items()}
        points = [p for lines in self.runs.values() for line in lines for p in line]
        self.empty = not points
        self.note = _note(series)
        ys = [y for _, y in points] or ([1.0, 10.0] if log_y else [0.0, 1.0])
        if name.endswith("/s") and not log_y:  # a rate is seen against none at all
            ys.append(0.0)
        self.x0, self.x1 = x_range or x_span([series], log_x=log_x)
        self.y_ticks = (decades if log_y else ticks)(min(ys), max(ys))
        self.y0, self.y1 = self.y_ticks[0], self.y_ticks[-1]
        if log_x:
            self.x_ticks = decades(self.x0, self.x1)
            self.x0, self.x1 = self.x_ticks[0], self.x_ticks[-1]
        else:
            whole = all(isinstance(x, int) for xs, _ in series.values() for x in xs[-1:])
            self.x_ticks = [t for t in ticks(self.x0, self.x1, 5, whole=whole) if self.x0 <= t <= self.x1]

    def at(self, x: float, y: float, width: float, height: float) -> tuple[float, float]:
        """Data to pixels inside an area of this size, y downwards."""
        u = math.log(x / self.x0) / math.log(self.x1 / self.x0) if self.log_x else (x - self.x0) / (self.x1 - self.x0)
        v = math.log(y / self.y0) / math.log(self.y1 / self.y0) if self.log_y else (y - self.y0) / (self.y1 - self.y0)
        return u * width, (1 - v) * height

    def lasts(self) -> list[tuple[int | str, int, float, float]]:
        """(series, its place, x, y) of the last points that get a label; equal texts are written once."""
        ends = [(key, i, *lines[-1][-1]) for i, (key, lines) in enumerate(self.runs.items()) if lines]
        found = list({text_of(end[3]): end for end in reversed(ends)}.values())
        if len(found) <= LABELLED:
            return found
        return [max(found, key=lambda f: f[3]), min(found, key=lambda f: f[3])]


def _note(series: Mapping[int | str, Series]) -> str:
    for key, (xs, ys) in series.items():
        if (total := sum(ys)) - total != 0:
            bad = [(x, y) for x, y in zip(xs, ys, strict=True) if y - y != 0]
            if bad:
                who = f"{style.label(key)}, " if len(series) > 1 else ""
                return f"{bad[0][1]} from {who}x = {text_of(bad[0][0])} ({len(bad)} values)"
    return ""


def spread(places: list[float], gap: float, low: float, high: float) -> list[float]:
    """Move sorted label places apart to at least `gap`, inside low..high."""
    out: list[float] = []
    for p in places:
        out.append(max(p, out[-1] + gap if out else low))
    over = max(0.0, out[-1] - high) if out else 0.0
    for i in range(len(out) - 1, -1, -1):
        out[i] = min(out[i] - (over if i == len(out) - 1 else 0), out[i + 1] - gap if i + 1 < len(out) else high)
    return out
