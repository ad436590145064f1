"""A time limit for a learner's code that runs in the notebook's own process: a loop that never ends, ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from ..ranks.crew import running

SECONDS = 60.0


class TooLong(BaseException):
    """The answer was still running when its time was over; no `except Exception` of the learner's stops it."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooLong` here when what is inside takes longer.

    A launch has a limit of its own and knows its ranks, so it is left to end by itself. Where there is no alarm
    (Windows, a thread that is not the main one) there is no limit.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: object) -> None:
        if running():
            signal.setitimer(signal.ITIMER_REAL, 1.0)
        else:
            raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
