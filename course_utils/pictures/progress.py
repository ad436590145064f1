"""How far a loop is: the line under the curves."""

from __future__ import annotations

import html
from dataclasses import dataclass

from .. import style
from ..style import number


@dataclass
class Progress:
    """`done` of `total` items (None: unknown) that are called `unit`, since `begun` (s)."""

    total: int | None
    unit: str
    begun: float
    done: int = 0
    last: float | None = None  # when the last one was done, where that is known

    def saw(self, done: int, at: float) -> None:
        """So many were done elsewhere, one of them at this time."""
        self.begun = at if self.last is None else min(self.begun, at)
        self.done, self.last = max(self.done, done), max(self.last or at, at)

    def text(self, now: float, *, ended: bool = False) -> str:
        """Items, rate, and the time left at the mean rate so far; at the end the time it took."""
        seconds = max((now if self.last is None else self.last) - self.begun, 1e-9)
        parts = [f"{self.unit} {self.done:,}" + (f" of {self.total:,}" if self.total else "")]
        if self.done:
            rate = self.done / seconds
            parts.append(f"{number(rate)} {self.unit}s/s" if rate >= 1 else f"{number(1 / rate)} s/{self.unit}")
        if ended:
            parts.append(f"took {duration(seconds)}")
        elif self.done and self.total:
            parts.append(f"{duration(max(0, self.total - self.done) * seconds / self.done)} left")
        return " · ".join(parts)

    def html(self, now: float, *, ended: bool = False) -> str:
        bar = ""
        if self.total and not ended:
            part = min(1.0, self.done / self.total)
            bar = ('<div style="height:3px;margin:5px 0 0 8px;max-width:360px;background:rgba(128,128,128,.3)">'
                   f'<div style="height:3px;width:{100 * part:.1f}%;background:{style.RANK[0]}"></div></div>')
        return (f'{bar}<div style="font:{style.TEXT}px {style.FONT};padding:3px 8px;font-variant-numeric:tabular-nums">'
                f"{html.escape(self.text(now, ended=ended))}</div>")


def duration(seconds: float) -> str:
    """Seconds as one reads them: 3.2 s, 45 s, 12 min, 1.5 h."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
