"""The errors a learner can meet, shown with the cell and the line where they came up, and without our own frames."""

import linecache
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

Frame = tuple[str, int, str]  # file, line, function
PACKAGE = str(Path(__file__).parent)
NOT_THEIRS = ("<", PACKAGE, sysconfig.get_paths()["stdlib"])


class CourseError(Exception):
    """Base of all errors of `course_utils`; a notebook shows its message and the cell's line, without our frames."""

    def _render_traceback_(
        self,
    ) -> list[str]:  # IPython's hook for exceptions that know how to be shown
        return in_words(self, self)


class DeviceError(CourseError):
    """A device was asked for that is not here."""


class RankError(CourseError):
    """A rank failed, or never finished; every other rank was ended.

    Attributes:
        rank: the rank that failed first, or None when several ranks never finished.
        cause: the name of what happened: an exception's class, a signal, "TimeLimit", "Exit".
        traceback: the rank's own traceback, "" when it did not raise.
        said: the message without the advice to whoever called `launch`.
        run: the `Run` with what was collected until then: metrics, output, timeline.
    """

    def __init__(
        self, said: str, *, rank: int | None, cause: str, traceback: str, run: Any, advice: str = ""
    ) -> None:
        super().__init__("\n".join(filter(None, [said, advice])))
        self.said, self.rank, self.cause, self.traceback, self.run = (
            said,
            rank,
            cause,
            traceback,
            run,
        )


def in_words(error: BaseException, message: object) -> list[str]:
    """What a notebook shows of an error: its kind and message, and the cell's line, without our frames."""
    said = f"{type(error).__name__}: {message}"
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    cells = [place(frame) for frame in frames if cell_name(frame[0])]
    return [said] if "  Cell" in said else [said, *cells[-1:]]


def cell_name(file: str) -> str | None:
    """`Cell In[7]` for the file name under which IPython compiled a cell; None for any other file."""
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        count = getattr(shell.compile, "_filename_map", {}).get(file)
        if count is not None:
            return f"Cell In[{count}]"
    return "Cell" if "/ipykernel_" in file or file.startswith("<ipython-input") else None


def place(frame: Frame) -> str:
    """`Cell In[7], line 4, in train` and the source line under it."""
    file, line, function = frame
    where = cell_name(file) or Path(file).name
    function = "" if function == "<module>" else f", in {function}"
    source = linecache.getline(file, line).strip()
    return f"  {where}, line {line}{function}" + (f"\n      {source}" if source else "")


def own_frames(frames: list[Frame]) -> list[Frame]:
    """The frames a learner wrote: those in cells, else those outside of installed packages; outermost first."""
    cells = [f for f in frames if cell_name(f[0])]
    return cells or [
        f for f in frames if "site-packages" not in f[0] and not f[0].startswith(NOT_THEIRS)
    ]
