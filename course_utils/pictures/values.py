"""What a live plot was given: every value of every rank, and the rate of its steps."""

from __future__ import annotations

from typing import Any

from ..errors import CourseError

SHORTEST = 0.25  # seconds between two frames, and between two measurements of a rate
RATE = "steps/s"


def number(value: Any) -> float:
    """A number of Python, NumPy or torch as a float; what is none, or several, raises in their own words."""
    return float(value.item() if hasattr(value, "item") else value)  # float(tensor) warns of its gradient


class Values:
    """Series by metric and rank, {name: {rank: ([steps], [values])}}; taking a value costs about a microsecond."""

    def __init__(self) -> None:
        self.data: dict[str, dict[int, tuple[list[float], list[float]]]] = {}
        self._counts: dict[int, float] = {}  # rank -> the next step, for steps that are not given
        self._marks: dict[int, tuple[float, float]] = {}  # rank -> (time, step) where measuring its rate began
        self._latest: dict[int, float] = {}  # rank -> time of its last values, on its own clock

    def take(self, step: float | None, rank: int, now: float, values: dict[str, Any]) -> None:
        """Add these values of `rank`, all of them or, with an error, none."""
        if step is None:
            step = self._counts.get(rank, 0)
        elif type(step) is not int:
            step = number(step)
            if step - step != 0:
                raise CourseError(f"step is {step}; the x axis needs a finite number, for example the loop's counter.")
        if rank not in self._counts and not (isinstance(rank, int) and rank >= 0):
            raise CourseError(f"rank is {rank!r} ({type(rank).__name__}); ranks are whole numbers from 0.")
        for name, value in values.items():
            if type(value) is not float:
                values[name] = number(value)
        for name, value in values.items():
            xs, ys = self._series(name, rank)
            xs.append(step)
            ys.append(value)
        self._counts[rank], self._latest[rank] = step + 1, now
        if RATE in values:  # the caller measures it
            return
        mark = self._marks.get(rank)
        if mark is None or step < mark[1]:
            self._marks[rank] = (now, step)
        elif now - mark[0] >= SHORTEST and step > mark[1]:
            self._rate(rank, now, step, mark)

    def _series(self, name: str, rank: int) -> tuple[list[float], list[float]]:
        by_rank = self.data.get(name)
        if by_rank is None:
            by_rank = self.data[name] = {}
        points = by_rank.get(rank)
        if points is None:
            points = by_rank[rank] = ([], [])
        return points

    def _rate(self, rank: int, now: float, step: float, mark: tuple[float, float]) -> None:
        xs, ys = self._series(RATE, rank)
        xs.append(step)
        ys.append((step - mark[1]) / (now - mark[0]))
        self._marks[rank] = (now, step)

    def settle(self) -> None:
        """At the end: a run shorter than a rate's window still gets its one rate."""
        for rank, mark in self._marks.items():
            last, at = self._counts[rank] - 1, self._latest[rank]
            if rank not in self.data.get(RATE, {}) and last > mark[1] and at > mark[0]:
                self._rate(rank, at, last, mark)

    def done(self) -> int:
        """Steps that every rank has finished, where steps count from 0."""
        return int(min(self._counts.values(), default=0))

    def furthest(self) -> int:
        """Steps that some rank has finished."""
        return int(max(self._counts.values(), default=0))

    def forget(self, rank: int) -> None:
        """Drop all values of a rank that begins anew."""
        for known in (self._counts, self._marks, self._latest, *self.data.values()):
            known.pop(rank, None)

    def size(self) -> tuple[int, int]:
        """(ranks, steps of the longest series)."""
        steps = max((len(xs) for series in self.data.values() for xs, _ in series.values()), default=0)
        return len(self._counts), steps
