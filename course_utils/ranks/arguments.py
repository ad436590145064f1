"""What a launch was asked for, checked before anything starts: refusals in words."""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable

from ..errors import CourseError
from ..machine import usable_memory
from . import session

RANK_MEMORY = 40 << 20  # bytes a rank needs at least: what it does not share with the server it is forked from
MOST_RANKS = 128  # each takes two descriptors, and many shells allow a process 256 to 1,024


def check_call(function: Callable, *, live: object, time_limit: float | None) -> None:
    """What every launch checks, whatever it runs on."""
    _check_here()
    _check_function(function)
    if live is not None and not all(hasattr(live, name) for name in ("open", "add", "tick", "close")):
        raise CourseError(f'live={live!r} is no live plot; write live=LivePlot("loss")')
    is_time = isinstance(time_limit, (int, float)) and not isinstance(time_limit, bool)
    if time_limit is not None and not (is_time and 0 < time_limit < math.inf):
        raise CourseError(f"time_limit={time_limit!r}: give seconds, more than 0, or None for no limit")


def name_of(function: Callable) -> str:
    """What a run is called: the function's name, or for a `partial` or an object its kind."""
    return getattr(function, "__name__", type(function).__name__)


def _check_here() -> None:
    if session.current() is not None:
        raise CourseError(
            "launch was called inside a rank that launch started. Ranks cannot start ranks: "
            "call launch in the notebook, and the function itself in the rank."
        )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise CourseError(
            "this process was started by torchrun, so it is already a rank: call the function itself, without launch"
        )
    if sys.platform == "win32":
        raise CourseError(
            "launch needs Linux or macOS. On Windows, open the course in WSL2 (Ubuntu): the README says how."
        )


def _check_function(function: object) -> None:
    if callable(function):
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            kind = "an async function" if inspect.iscoroutinefunction(function) else "a generator (it has a yield)"
            raise CourseError(f"{function.__name__} is {kind}; launch needs a plain function that returns its result")
        return
    hint = " It looks like the result of a call: write launch(train, 10), not launch(train(10))."
    hint = hint if function is None or not isinstance(function, str) else " Give the function itself, not its name."
    raise CourseError(f"launch needs a function, and got {function!r:.60} ({type(function).__name__}).{hint}")


def check_ranks(ranks: object) -> int | None:
    if ranks is None:
        return None
    if isinstance(ranks, bool) or not isinstance(ranks, int):
        raise CourseError(f"ranks={ranks!r} ({type(ranks).__name__}): give a whole number, for example ranks=4")
    _, memory = usable_memory()
    most = max(1, min(MOST_RANKS, memory // RANK_MEMORY))
    if not 1 <= ranks <= most:
        reason = f", with {memory / 2**30:.1f} GiB of memory free" if most < MOST_RANKS else ""
        raise CourseError(f"ranks={ranks}: on this machine{reason}, launch starts 1 to {most} ranks")
    return ranks


def folder() -> str:
    """The notebook's working folder, where ranks work, too."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise CourseError(
            "the folder that this notebook works in is gone (deleted or renamed), and ranks start there: "
            "os.chdir(…) to one that exists, or open the notebook from its new place"
        ) from None
