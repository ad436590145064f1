"""Interrupts: held back while processes are being ended, and sent to a thread that is in a launch or a loop."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing as mp
import signal
import sys
import threading
import time
from collections.abc import Iterator

sending = threading.Lock()  # held by whoever interrupts; the thread that is meant never takes it, it would lose it
_listening: set[StopLine] = set()


def interrupt(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in `thread`: out of its launch, whose ranks end, else at its next line of Python.

    Not for the main thread, which signals interrupt. Call it with `sending` held. A call into compiled code, or a
    sleep, is waited for.
    """
    lines = [line for line in tuple(_listening) if line.thread is thread]
    for line in lines:
        line.ask()
    if not lines:
        kind = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), kind)


def settle() -> None:
    """Wait while an interrupt is being sent: if it is for this thread, it arrives here at the latest."""
    while sending.locked():
        time.sleep(0.001)


class StopLine:
    """How an interrupt finds a launch that waits for its ranks: `source` has something to read once it is asked."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.asked = False
        self.source, self._end = mp.Pipe(duplex=False)

    def open(self) -> None:
        """From now on interrupts of this thread come here."""
        _listening.add(self)
        try:
            settle()
        except KeyboardInterrupt:
            _listening.discard(self)
            raise

    def close(self) -> None:
        """From now on they come to the thread itself."""
        _listening.discard(self)
        settle()
        self.source.close()
        self._end.close()

    def ask(self) -> None:
        """Let the launch end."""
        self.asked = True
        self._end.send_bytes(b"stop")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back KeyboardInterrupt while processes are being ended, then let it through."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupts and sys.exc_info()[0] is None:
            signal.raise_signal(signal.SIGINT)
