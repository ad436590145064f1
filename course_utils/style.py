"""How things look and read: colours by role and by rank, numbers with their units.

One palette for light and dark pages: every colour keeps 3:1 or more on white and on #111. Text
follows the page's own colour, except in a PNG, and never takes a series' colour: that takes a mark
beside it.
"""

import html
import math
import re
from functools import cache
from typing import Any

from . import records
from .errors import CourseError

ROLE = {
    "data": "#C060A8",
    "forward": "#0072B2",
    "backward": "#D55E00",
    "communication": "#8A63D2",
    "optimizer": "#009E73",
    "idle": "#808080",
    "other": "#8A7A00",
}  # the colour of each kind of work in a timeline
RANK = ("#0072B2", "#D55E00", "#009E73", "#C060A8", "#8A7A00", "#8A63D2", "#808080", "#00899B")
# Dashes of each rank (SVG units), from rank 4 on again: colour is never the only cue.
DASH = ("", "7 3", "2 2.5", "9 3 2 3")
# Text and axes of a PNG, which cannot follow the page: 4.3:1, the most there can be on both pages.
GREY = "#797979"
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
TEXT, SMALL = 12, 11  # font sizes in px
WIDTH = 760  # a figure's full width in px
AXIS, QUIET = 0.5, 0.75  # opacities over currentColor
# The style of the box that a picture in HTML stands in.
BOX = f"max-width:{WIDTH}px;font:{TEXT}px {FONT};padding:4px 8px"

_WORDS = {
    "data": "data load loader batch fetch",
    "forward": "forward loss",
    "backward": "backward",
    "communication": "communication all-to-all reduce gather scatter broadcast "
    "send recv receive barrier",
    "optimizer": "optimizer update",
    "idle": "idle wait waiting bubble",
}
_ROLE_OF = {word: role for role, words in _WORDS.items() for word in words.split()}


@cache
def role_of(name: str) -> str:
    """Role of a span, by the first word that is known ("all-reduce 2" -> "communication")."""
    words = re.findall("all-to-all|[a-z]+", name.lower().replace("_", "-"))
    return next((_ROLE_OF[word] for word in words if word in _ROLE_OF), "other")


def color(rank: int) -> str:
    """Colour of a rank, or of the series at this place in a picture."""
    return RANK[rank % len(RANK)]


def dash(rank: int) -> str:
    """Dash pattern of a rank or series; ranks 8 to 15 repeat colours, not dashes."""
    return DASH[(rank + rank // len(RANK)) % len(DASH)]


def ink(color: str) -> str:
    """Colour of text on a box of this colour of the palette: 4.5:1 or more."""
    return "white" if color == ROLE["forward"] else "black"


def alt(text: str) -> str:
    """Attributes that make an SVG or HTML element one picture with this text for screen readers."""
    return f'role="img" aria-label="{html.escape(text)}"'


def as_float(value: Any, name: str = "value") -> float:
    """`records.as_float`, which raises a CourseError."""
    return records.as_float(value, name, CourseError)


def number(value: float) -> str:
    """A number as short as it can be read: 0.0312, 96.5, 1,437, 23.5k, 1.2M, 3e+13."""
    size = abs(value)
    if not math.isfinite(value) or (size and not 1e-3 <= size < 1e12):
        return f"{value:.2g}"
    for worth, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= 0.99999 * max(worth, 1e4):
            return f"{value / worth:.3g}{letter}"
    return f"{value:,.0f}" if size >= 999.5 else f"{value:.3g}"


def plural(number: float, noun: str) -> str:
    """`1 core`, `1.5 cores`."""
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"


def duration(seconds: float, digits: int = 3) -> str:
    """Seconds as one reads them: 0.0124 -> "12.4 ms", 45 -> "45 s", 750 -> "12.5 min"."""
    if seconds < 1:
        return f"{_rounded(1000 * seconds, digits)} ms"
    if seconds < 90:
        return f"{_rounded(seconds, digits)} s"
    if seconds < 5400:
        return f"{_rounded(seconds / 60, digits)} min"
    return f"{_rounded(seconds / 3600, digits)} h"


def size(count: float) -> str:
    """Bytes as one reads them, in decimal units as papers do: 31_400_000_000 -> "31.4 GB"."""
    for unit, worth in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * worth:
            return f"{_rounded(count / worth, 3)} {unit}"
    return f"{count:.0f} B"


def _rounded(value: float, digits: int) -> str:
    """So many digits that count, and never fewer than the whole number has."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:,.0f}"
