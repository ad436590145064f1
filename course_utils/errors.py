"""The errors a learner can meet, shown with the cell's line and without our own frames."""

import functools
import linecache
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

Frame = tuple[str, int, str]  # file, line, function
PACKAGE = str(Path(__file__).parent)
MOST_FRAMES = 1_000  # of a deep recursion, the innermost ones
INSTALLED = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
PACKAGES = {"site-packages", "dist-packages"}


class CourseError(Exception):
    """Base of all errors of `course_utils`, which a notebook shows by `in_words`."""

    # IPython's hook for exceptions that know how to be shown
    def _render_traceback_(self) -> list[str]:
        return in_words(self, self)


class DeviceError(CourseError):
    """A device was asked for that is not here."""


class RankError(CourseError):
    """A rank failed, or never finished; every other rank was ended.

    Attributes:
        rank: the rank that failed first, or None when several never finished.
        cause: the name of what happened: an exception's class, a signal, "TimeLimit", "Exit".
        traceback: the rank's own traceback, "" when it did not raise.
        run: the `Run` with what was collected until then: metrics, output, timeline.
        report: what the message is made of: `course_utils.ranks.words.Report`.
    """

    def __init__(
        self,
        report: Any,
        advice: str,
        *,
        rank: int | None,
        cause: str,
        traceback: str,
        run: Any,
    ) -> None:
        sentence = f"{report.label} {report.happened}"
        lines = [sentence, *report.lines, *report.others, advice]
        super().__init__("\n".join(filter(None, lines)))
        self.rank = rank
        self.cause = cause
        self.traceback = traceback
        self.run = run
        self.report = report

    def __reduce__(self) -> tuple:  # as it is, to the process of a sweep for example
        return Exception.__new__, (type(self), *self.args), vars(self)


def in_words(error: BaseException, message: object) -> list[str]:
    """What a notebook shows of an error: its kind and message, and the cell's line."""
    sentence = f"{type(error).__name__}: {message}"
    frames = frames_of(error)
    cells = [location(frame) for frame in frames if cell_name(frame[0])]
    return [sentence] if "  Cell" in sentence else [sentence, *cells[-1:]]


def frames_of(error: BaseException) -> list[Frame]:
    """Where an exception passed, outermost first."""
    frames = traceback.extract_tb(error.__traceback__, limit=-MOST_FRAMES)
    return [(frame.filename, frame.lineno or 0, frame.name) for frame in frames]


def cell_name(file: str) -> str | None:
    """`Cell In[7]` for the name of a file that IPython made of a cell; None for any other."""
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        count = getattr(shell.compile, "_filename_map", {}).get(file)
        if count is not None:
            return f"Cell In[{count}]"
    of_cells = "<ipython-input", "<timed exec>"  # this of %%time
    return "Cell" if "/ipykernel_" in file or file.startswith(of_cells) else None


def location(frame: Frame) -> str:
    """`Cell In[7], line 4, in train` and the source line under it."""
    file, line, function = frame
    where = cell_name(file) or Path(file).name
    text = f"  {where}, line {line}"
    if function != "<module>":
        text += f", in {function}"
    linecache.checkcache(file)
    source = linecache.getline(file, line).strip()
    return f"{text}\n      {source}" if source else text


def own_frames(frames: list[Frame]) -> list[Frame]:
    """The frames that a learner wrote, outermost first: in cells and, of what these call, the
    innermost in a file of his own; without cells, all outside of packages.
    """
    cells = [i for i, frame in enumerate(frames) if cell_name(frame[0])]
    after = cells[-1] + 1 if cells else 0
    files = [frame for frame in frames[after:] if is_own_file(frame[0])]
    return [frames[i] for i in cells] + files[-1:] if cells else files


def is_own_file(file: str) -> bool:
    if file.startswith("<"):
        return cell_name(file) is not None
    return not file.startswith(PACKAGE) and not is_installed(file)


def is_installed(path: str) -> bool:
    """Whether a file or folder is Python's own, or a package manager has put it there."""
    if path.startswith(INSTALLED) or not PACKAGES.isdisjoint(Path(path).parts):
        return True
    for folder in (os.path.abspath(path) for path in sys.path if isinstance(path, str)):
        if path == folder and _modules_of_packages(folder):
            return True
        if path.startswith(f"{folder}/"):
            top = path[len(folder) + 1 :].partition("/")[0].partition(".")[0]
            if top in _modules_of_packages(folder):
                return True
    return False


@functools.cache
def _modules_of_packages(folder: str) -> set[str]:
    """What pip has put into this folder of sys.path, as it does by `--target`."""
    found: set[str] = set()
    for info in Path(folder).glob("*.dist-info"):
        from importlib import metadata

        package = metadata.PathDistribution(info)
        found |= {*(package.read_text("top_level.txt") or "").split()}
        found |= {file.parts[0].partition(".")[0] for file in package.files or ()}
    return found
