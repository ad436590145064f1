"""What every rank did and when: spans on one clock, and what can be read off them."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from .style import duration, role_of


@dataclass(frozen=True)
class Span:
    """One piece of work of one rank, from `start` to `end` in seconds on the clock that all ranks
    share.
    """

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

    Args:
        ranks: those that have a row, and count in `idle`, also where they have no span.

    It knows its `spans` and `ranks`, and its `start`, `end` and length in `seconds`. In `busy`,
    `overlap` and `idle` work that overlaps counts once, and spans of the role "idle" never count.
    """

    _repr_png_: Callable  # for IPython; `pictures` sets it, because data need not know its pictures

    def __init__(
        self, spans: Iterable[Span], *, title: str = "", ranks: Iterable[int] = ()
    ) -> None:
        self.title = title
        self.spans = tuple(sorted(spans, key=lambda s: (s.start, s.rank, s.end)))
        self.by_rank: dict[int, list[Span]] = defaultdict(list)
        for s in self.spans:
            self.by_rank[s.rank].append(s)
        self.ranks = tuple(sorted({*self.by_rank, *ranks}))
        self.start = self.spans[0].start if self.spans else 0.0
        self.end = max((s.end for s in self.spans), default=0.0)
        self.seconds = self.end - self.start

    def __repr__(self) -> str:
        spans = f"{len(self.spans)} spans of ranks {list(self.ranks)}"
        return f"Timeline({spans}, {duration(self.seconds)})"

    def titled(self, title: str) -> "Timeline":
        """The same timeline with a title above its picture."""
        return Timeline(self.spans, title=title, ranks=self.ranks)

    def between(self, start: float, end: float) -> "Timeline":
        """The same timeline from `start` to `end` (s); spans that cross a border are cut there."""
        return self._of(
            replace(s, start=max(s.start, start), end=min(s.end, end)) for s in self.spans
        )

    def _of(self, spans: Iterable[Span]) -> "Timeline":
        """The same timeline with these spans, without those of which nothing is left."""
        there = [s for s in spans if s.seconds > 0]
        return Timeline(there, title=self.title, ranks=self.ranks)

    def last(self, name: str) -> "Timeline":
        """The last step, from the first rank's on; a step begins with the span `name`.

        Raises ValueError where no span has that name.
        """
        begins = {s.rank: s.start for s in self.spans if s.name == name}  # a rank's last one stays
        if not begins:
            names = ", ".join(sorted({s.name for s in self.spans})) or "none at all"
            raise ValueError(f"no span is called {name!r}; there are {names}")
        return self.between(min(begins.values()), self.end)

    def flat(self) -> "Timeline":
        """The same timeline where no two spans of a lane overlap.

        What goes on inside a span is cut out of it, as on a CPU an all-gather out of the forward
        that waits for it.
        """
        lanes = defaultdict(list)
        for s in self.spans:
            lanes[s.rank, s.lane].append(s)

        pieces = []
        for lane in lanes.values():
            starts = [s.start for s in lane]
            for outer in lane:
                at = outer.start
                begin, end = bisect_left(starts, at), bisect_right(starts, outer.end)
                for inner in lane[begin:end]:
                    if inner.end <= outer.end and inner.seconds < outer.seconds:
                        pieces.append(replace(outer, start=at, end=max(at, inner.start)))
                        at = max(at, inner.end)
                pieces.append(replace(outer, start=at))
        return self._of(pieces)

    def busy(self, rank: int, *lanes: str) -> float:
        """Seconds in which this rank was busy in any of these lanes, of none named in "compute"."""
        lanes = lanes or ("compute",)
        busy = 0.0
        until = float("-inf")
        for s in self.by_rank.get(rank, ()):
            if s.lane in lanes and s.role != "idle":
                busy += max(0.0, s.end - max(s.start, until))
                until = max(until, s.end)
        return busy

    def overlap(self) -> float:
        """Seconds in which a rank computed and communicated at once, summed over ranks."""
        both = 0.0
        for rank in self.ranks:
            both += self.busy(rank) + self.busy(rank, "communication")
            both -= self.busy(rank, "compute", "communication")
        return max(0.0, both)

    def idle(self) -> float:
        """Share of the timeline, 0 to 1, in which a rank computed nothing: the mean over ranks."""
        whole = len(self.ranks) * self.seconds
        if not whole:
            return 0.0
        return 1 - sum(map(self.busy, self.ranks)) / whole
