"""What every rank did and when: spans on one clock, and what can be read off them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

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

    Work that overlaps counts once in `busy`, `overlap` and `idle`. Spans of the role "idle" are never busy.
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
        from .pictures.gantt import gantt  # only what is looked at is drawn

        return gantt(self)._repr_png_()

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

    def last(self, name: str) -> Timeline:
        """The end of the timeline: from where the first of the ranks begins its last span of this name."""
        starts = {s.rank: s.start for s in self.spans if s.name == name}  # by start, so that the last one stays
        if not starts:
            raise CourseError(f"last({name!r}): there is no such span, only {sorted({s.name for s in self.spans})}.")
        return self.between(min(starts.values()), self.end)

    def titled(self, title: str) -> Timeline:
        """The same timeline with a title."""
        return Timeline(self.spans, title=title)

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

    def busy(self, rank: int, *lanes: str) -> float:
        """Seconds in which this rank had something to do in one of these lanes, "compute" if none is named."""
        seconds, until = 0.0, float("-inf")
        for s in self.spans:  # by start
            if s.rank == rank and s.lane in (lanes or ("compute",)) and s.role != "idle":
                seconds += max(0.0, s.end - max(s.start, until))
                until = max(until, s.end)
        return seconds

    def overlap(self, rank: int | None = None) -> float:
        """Seconds in which a rank computed and communicated at once, summed over ranks if `rank` is None."""
        if rank is None:
            return sum(map(self.overlap, self.ranks))
        return self.busy(rank) + self.busy(rank, "communication") - self.busy(rank, "compute", "communication")

    def idle(self, rank: int | None = None) -> float:
        """Share of the timeline, 0 to 1, in which a rank had nothing to compute; the ranks' mean if it is None."""
        ranks = self.ranks if rank is None else [rank]
        return 1 - sum(map(self.busy, ranks)) / (len(ranks) * self.seconds) if self.seconds else 0.0
