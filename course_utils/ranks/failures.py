"""What ended a rank: an exception, or the death of its process."""

from __future__ import annotations

import re
import signal
import time
import traceback

from ..errors import MOST_FRAMES, PACKAGE, Frame, frames_of
from .wire import Failure

MOST_MESSAGE = 2_000  # characters of an error's message
FRAMES_OF_C = "\nException raised from "  # after what it says, torch's C++ tells its own frames
MOST_CAUSES = 3  # errors that led to an error
ENDS = {"SIGKILL": "was killed", "SIGSEGV": "crashed", "SIGBUS": "crashed", "SIGABRT": "crashed"}
STACK = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)  # of faulthandler
LAST_WORDS = re.compile(r"^ *what\(\): *(.*)$", re.MULTILINE)  # of C++ that nobody caught


def raised_by(error: BaseException) -> Failure:
    """What a rank tells of an exception."""
    name = type(error).__name__
    if isinstance(error, SystemExit):
        happened = f"called sys.exit({error}) before its function returned"
    else:
        happened = f"raised {in_full(error)}"
    frames = [one for one in frames_of(error) if not one[0].startswith(PACKAGE)]
    formatted = "".join(traceback.format_exception(error, limit=-MOST_FRAMES))
    return Failure(time.perf_counter(), name, happened, frames, formatted)


def in_full(error: BaseException, most: int = MOST_CAUSES) -> str:
    """An exception with its notes, and the errors that led to it, `most` deep."""
    text = type(error).__name__
    try:
        message = str(error).split(FRAMES_OF_C)[0]
        notes = [f"\n  {note}" for note in getattr(error, "__notes__", ())]
    except BaseException as failed:
        message, notes = f"(its text cannot be made: {type(failed).__name__})", []
    if message:
        text += f": {message[:MOST_MESSAGE]}"
    if len(message) > MOST_MESSAGE:
        text += f"… ({len(message):,} characters)"
    text += "".join(notes)
    if isinstance(error, BaseExceptionGroup):
        inside = [in_full(inner, most - 1) for inner in error.exceptions[:MOST_CAUSES]]
        text += "".join(f"\n  with {inner}" for inner in inside)

    cause, words = error.__cause__, "caused by"
    if cause is None and not error.__suppress_context__:
        cause, words = error.__context__, "raised while handling"
    if cause is not None and most > 0:
        text += f"\n  {words} {in_full(cause, most - 1)}"
    return text


def died(exitcode: int, stack: str, printed: str) -> Failure:
    """What is known of a process that ended by itself.

    Args:
        stack: what `faulthandler` wrote of it, unless the function has it write elsewhere.
        printed: its output.
    """
    if exitcode >= 0:
        happened = f"ended with exit code {exitcode} before its function returned"
        return Failure(0.0, "Exit", happened, [], "")
    names = {one.value: one.name for one in signal.Signals}  # real-time signals have none
    name = names.get(-exitcode, f"signal {-exitcode}")
    happened = f"{ENDS.get(name, 'was ended')} ({name})"
    if words := LAST_WORDS.findall(printed):
        happened += f": {words[-1][:MOST_MESSAGE]}"
    return Failure(0.0, name, happened, _frames_in(stack or printed), "")


def _frames_in(stack: str) -> list[Frame]:
    """The frames of the thread that crashed, outermost first; if none is named, of all threads."""
    threads = stack[max(0, stack.find("Current thread")) :]
    return [(file, int(line), name) for file, line, name in STACK.findall(threads)][::-1]
