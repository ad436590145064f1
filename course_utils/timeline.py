"""What every rank did and when: spans on one clock, and what can be read off them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .style import duration, role_of


@dataclass(frozen=True)
class Span:
    """One piece of work of one rank, from `start` to `end` in seconds on the clock that all ranks share."""

    rank: int
    name: str
    start: float
    end: float
    lane: str = "compute"

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def role(self) -> str:
        return role_of(self.name)


class Timeline:
    """Spans of all ranks, sorted by start; the last line of a cell draws it as a Gantt chart.

    It knows its `spans` and `ranks`, and its `start`, `end` and length in `seconds`. In `busy`, `overlap` and `idle`
    work that overlaps counts once, and spans of the role "idle" never count.
    """

    def __init__(self, spans: Iterable[Span], *, title: str = "") -> None:
        self.title = title
        self.spans = tuple(sorted(spans, key=lambda s: (s.start, s.rank, s.end)))
        self.ranks = tuple(sorted({s.rank for s in self.spans}))
        self.start = self.spans[0].start if self.spans else 0.0
        self.end = max((s.end for s in self.spans), default=0.0)
        self.seconds = self.end - self.start

    def __repr__(self) -> str:
        return f"Timeline({len(self.spans)} spans of ranks {list(self.ranks)}, {duration(self.seconds)})"

    def _repr_png_(self) -> tuple[bytes, dict]:
        from .pictures.gantt import gantt

        return gantt(self)._repr_png_()

    def titled(self, title: str) -> "Timeline":
        """The same timeline with a title above its picture."""
        return Timeline(self.spans, title=title)

    def between(self, start: float, end: float) -> "Timeline":
        """The same timeline from `start` to `end` (s); spans that cross a border are cut there."""
        inside = (s for s in self.spans if s.end > start and s.start < end)
        return Timeline(
            (replace(s, start=max(s.start, start), end=min(s.end, end)) for s in inside),
            title=self.title,
        )

    def last(self, name: str) -> "Timeline":
        """The last step, where a step of every rank begins with the span `name`: from the first rank's on."""
        begins = {
            s.rank: s.start for s in self.spans if s.name == name
        }  # sorted by start: the last of a rank stays
        return self.between(min(begins.values()), self.end)

    def flat(self) -> "Timeline":
        """The same timeline where no two spans of a lane overlap: what goes on inside a span is cut out of it, as on a
        CPU an all-gather out of the forward that waits for it."""
        pieces = []
        for s in self.spans:
            at = s.start
            inner = (
                o
                for o in self.spans
                if (o.rank, o.lane) == (s.rank, s.lane)
                and o.seconds < s.seconds
                and s.start <= o.start
                and o.end <= s.end
            )
            for o in inner:
                pieces.append(replace(s, start=at, end=max(at, o.start)))
                at = max(at, o.end)
            pieces.append(replace(s, start=at))
        return Timeline((piece for piece in pieces if piece.end > piece.start), title=self.title)

    def busy(self, rank: int, *lanes: str) -> float:
        """Seconds in which this rank had something to do in any of these lanes ("compute" if none is named)."""
        busy, until = 0.0, float("-inf")
        for s in self.spans:
            if s.rank == rank and s.lane in (lanes or ("compute",)) and s.role != "idle":
                busy += max(0.0, s.end - max(s.start, until))
                until = max(until, s.end)
        return busy

    def overlap(self) -> float:
        """Seconds in which a rank computed and communicated at once, summed over ranks."""
        return max(
            0.0,
            sum(
                self.busy(rank)
                + self.busy(rank, "communication")
                - self.busy(rank, "compute", "communication")
                for rank in self.ranks
            ),
        )

    def idle(self) -> float:
        """Share of the timeline, 0 to 1, in which a rank computed nothing: the mean over ranks."""
        whole = len(self.ranks) * self.seconds
        return 1 - sum(map(self.busy, self.ranks)) / whole if whole else 0.0
