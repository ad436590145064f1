"""How things look and read: colours by role and by rank, numbers with their units.

One palette for light and dark pages: every colour keeps 3:1 or more on white and on #111. Text follows the page's own
colour, except in a PNG, and never takes a series' colour: that takes a mark beside it.
"""

import html
import math
import re

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
DASH = (
    "",
    "7 3",
    "2 2.5",
    "9 3 2 3",
)  # of each rank (SVG units), from rank 4 on again: colour is never the only cue
GREY = "#797979"  # text and axes of a PNG, which cannot follow the page: 4.3:1 on white and #111, the most there can be
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
TEXT, SMALL = 12, 11  # font sizes in px
WIDTH = 760  # a figure's full width in px
GRID, AXIS, QUIET = 0.14, 0.5, 0.75  # opacities over currentColor
BOX = (
    f"max-width:{WIDTH}px;font:{TEXT}px {FONT};padding:4px 8px"  # what a picture in HTML stands in
)

_WORDS = {
    "data": "data load loader batch fetch",
    "forward": "forward loss",
    "backward": "backward",
    "communication": "communication all-to-all reduce gather scatter broadcast send recv receive barrier",
    "optimizer": "optimizer step update",
    "idle": "idle wait waiting bubble",
}
_ROLE_OF = {word: role for role, words in _WORDS.items() for word in words.split()}


def role_of(name: str) -> str:
    """Role of a span by its name: the first word that is known ("all-reduce bucket 2" -> "communication")."""
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
    """SVG and HTML attributes that make an element one picture with this text for screen readers."""
    return f'role="img" aria-label="{html.escape(text, quote=True)}"'


def number(value: float) -> str:
    """A number as short as it can be read: 0.0312, 96.5, 1,437, 23.5k, 1.2M, 3e+13."""
    size = abs(value)
    if not math.isfinite(value) or (size and not 1e-3 <= size < 1e12):
        return f"{value:.2g}"
    for worth, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= 0.99999 * max(worth, 1e4):
            return f"{value / worth:.3g}{letter}"
    return f"{value:,.0f}" if size >= 999.5 else f"{value:.3g}"


def duration(seconds: float, digits: int = 3) -> str:
    """Seconds as one reads them: 0.0124 -> "12.4 ms", 45 -> "45 s", 750 -> "12.5 min"."""
    if seconds < 1:
        return f"{_rounded(1000 * seconds, digits)} ms"
    if seconds < 90:
        return f"{_rounded(seconds, digits)} s"
    return (
        f"{_rounded(seconds / 60, digits)} min"
        if seconds < 5400
        else f"{_rounded(seconds / 3600, digits)} h"
    )


def size(count: float) -> str:
    """Bytes as one reads them, in decimal units as papers do: 31_400_000_000 -> "31.4 GB"."""
    for unit, worth in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * worth:
            return f"{_rounded(count / worth, 3)} {unit}"
    return f"{count:.0f} B"


def _rounded(value: float, digits: int) -> str:
    """So many digits that count, and never fewer than the whole number has."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:,.0f}"
