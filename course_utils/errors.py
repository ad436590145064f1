"""The errors a learner can meet, all of them in words: what was asked, what was found, what to do next."""

from __future__ import annotations

import traceback
from typing import Any

from .cells import cell_name, place


def in_words(error: BaseException, message: object) -> list[str]:
    """What a notebook shows of an error: its kind and message, and the cell's line, without our frames."""
    lines = [f"{type(error).__name__}: {message}"]
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    cells = [frame for frame in frames if cell_name(frame[0])]
    if cells and "  Cell" not in lines[0]:
        lines.append(place(cells[-1]))
    return lines


class CourseError(Exception):
    """Base of all errors of `course_utils`; a notebook shows its message and the cell's line, without our frames."""

    def _render_traceback_(self) -> list[str]:
        # IPython's hook for exceptions that know how they want to be shown.
        return in_words(self, self)


class DeviceError(CourseError):
    """A device was asked for that this machine does not have."""


class LaunchError(CourseError):
    """`launch` was called with something it cannot run; nothing was started."""


class MetricError(CourseError):
    """`report` or a live plot was given something that is not a number."""


class RankError(CourseError):
    """A rank failed, or never finished; every other rank was ended.

    Attributes:
        rank: the rank that failed first, or None when several ranks never finished.
        cause: the name of what happened: an exception's class, a signal, "TimeLimit", "Exit".
        traceback: the rank's own traceback, or the place where it was stuck ("" when there is none).
        said: the message without the advice to whoever called `launch`.
        run: the `Run` with what was collected until then: metrics, output, timeline.
    """

    def __init__(
        self, message: str, *, rank: int | None, cause: str, traceback: str, run: Any, advice: str = ""
    ) -> None:
        super().__init__("\n".join(filter(None, [message, advice])))
        self.said = message
        self.rank, self.cause, self.traceback, self.run = rank, cause, traceback, run
