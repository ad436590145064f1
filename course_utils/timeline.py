"""What every rank did and when: spans on one clock, and what can be read off them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from . import drawing
from .errors import CourseError
from .style import role_of


@dataclass(frozen=True)
class Span:
    """One piece of work of one rank, from `start` to `end` in seconds on the clock that all ranks share."""

    rank: int
    name: str
    start: float
    end: float
    lane: str = "compute"

    def __post_init__(self) -> None:
        if not self.end >= self.start:
            raise CourseError(f"Span {self.name!r} of rank {self.rank} ends at {self.end} s, before its start, "
                              f"{self.start} s: take both times from the same clock.")

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def role(self) -> str:
        return role_of(self.name)


class Timeline:
    """Spans of all ranks, sorted by start; the last line of a cell draws it as a Gantt chart.

    `rank` and `lane` narrow a question; without them it is about all. Work that overlaps counts once in `busy`,
    `overlap` and `idle`, and fully in `total`. Spans of the role "idle" are never busy.
    """

    def __init__(self, spans: Iterable[Span], *, title: str = "") -> None:
        self.spans = tuple(sorted(spans, key=lambda s: (s.start, s.rank, s.end)))
        self.title = title

    def __len__(self) -> int:
        return len(self.spans)

    def __repr__(self) -> str:
        ranks = f"{len(self.ranks)} rank{'s' if len(self.ranks) != 1 else ''}"
        return f"Timeline({len(self.spans)} spans of {ranks}, {1000 * self.seconds:.1f} ms)"

    def _repr_png_(self) -> tuple[bytes, dict]:
        return drawing.of(self)._repr_png_()

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({s.rank for s in self.spans}))

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes in use, compute first."""
        return tuple(sorted({s.lane for s in self.spans}, key=lambda lane: (lane != "compute", lane)))

    @property
    def start(self) -> float:
        return self.spans[0].start if self.spans else 0.0

    @property
    def end(self) -> float:
        return max((s.end for s in self.spans), default=0.0)

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def between(self, start: float, end: float) -> Timeline:
        """The same timeline from `start` to `end` (s); spans that cross a border are cut there."""
        if not end > start:
            raise CourseError(f"between({start}, {end}) is an empty time: the second must be later than the first.")
        inside = (s for s in self.spans if s.end > start and s.start < end)
        return Timeline((replace(s, start=max(s.start, start), end=min(s.end, end)) for s in inside), title=self.title)

    def flat(self) -> Timeline:
        """The same timeline where no two spans of a lane overlap: what goes on inside a span is cut out of it.

        For work that waits for what it calls, as a forward on a CPU for the all-gather in it: each then has its own
        time. On an accelerator they run side by side: give the inner one a lane of its own instead.
        """
        pieces = []
        for s in self.spans:
            at = s.start
            for inner in self._inside(s):
                if inner.start > at:
                    pieces.append(replace(s, start=at, end=inner.start))
                at = max(at, inner.end)
            if at < s.end:
                pieces.append(replace(s, start=at))
        return Timeline(pieces, title=self.title)

    def _inside(self, s: Span) -> list[Span]:
        """Spans of the same rank and lane that lie inside `s`, by start."""
        return [o for o in self.spans if o is not s and (o.rank, o.lane) == (s.rank, s.lane) and s.start <= o.start
                and o.end <= s.end and o.seconds < s.seconds]

    def total(self, name: str | None = None, rank: int | None = None, lane: str | None = None) -> float:
        """Seconds summed over the spans of this name or role ("forward", "all-reduce", "communication")."""
        return sum(
            s.seconds
            for s in self.spans
            if (name is None or name in (s.name, s.role)) and rank in (None, s.rank) and lane in (None, s.lane)
        )

    def busy(self, rank: int, lane: str = "compute") -> float:
        """Seconds in which this lane of this rank had something to do."""
        return sum(b - a for a, b in self._intervals(rank, lane))

    def overlap(self, rank: int | None = None) -> float:
        """Seconds in which a rank computed and communicated at once, summed over ranks if `rank` is None."""
        if rank is None:
            return sum(self.overlap(r) for r in self.ranks)
        return sum(
            max(0.0, min(b, d) - max(a, c))
            for a, b, c, d in _pairs(self._intervals(rank, "compute"), self._intervals(rank, "communication"))
        )

    def idle(self, rank: int, lane: str = "compute") -> float:
        """Share of the whole timeline, 0 to 1, in which this lane of this rank had nothing to do."""
        return 1 - self.busy(rank, lane) / self.seconds if self.seconds else 0.0

    def _intervals(self, rank: int, lane: str) -> list[tuple[float, float]]:
        merged: list[tuple[float, float]] = []
        for s in self.spans:
            if s.rank != rank or s.lane != lane or s.role == "idle":
                continue
            if merged and s.start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], s.end))
            else:
                merged.append((s.start, s.end))
        return merged


def _pairs(left: list[tuple[float, float]], right: list[tuple[float, float]]) -> Iterable[tuple[float, ...]]:
    """Candidate pairs of two sorted lists of disjoint intervals, in linear time."""
    i = j = 0
    while i < len(left) and j < len(right):
        yield (*left[i], *right[j])
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
