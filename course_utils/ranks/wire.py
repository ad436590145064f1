"""What travels between the notebook and its ranks, and the connection on which a rank sends.

A virtual core of a TPU is a thread (`xla/core.py`), so a rank's session is found by thread first,
then by process.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from dataclasses import dataclass, field
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from ..errors import Frame
from .files import File
from .state import State
from .values import Parcel

LOCKED_SECONDS = 0.1  # in which another thread has sent what it is sending
MOST_RECORDS = 2_000  # in a message, so that the notebook looks at its time limit between two


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the notebook sends to every rank, beside the file of its parcel."""

    call: Parcel  # (function, args, kwargs)
    state: State  # of the notebook's process
    ranks: int  # of all
    device: str  # "cpu", "cuda", "xpu", "xla"
    backend: str | None  # None: no process group
    threads: int
    timeout: float | None  # seconds a collective may wait
    started: float  # time.perf_counter() at the launch: one clock for all processes of a machine


class At(NamedTuple):
    """Where a rank is, innermost frame first, and the seconds of CPU time that it has used."""

    frames: list[Frame]
    cpu_seconds: float


class WithoutThese(NamedTuple):
    """What of the notebook's state a rank does without."""

    lines: list[str]


class Interrupted(NamedTuple):
    """An interrupt has reached the function, as it does not while a rank waits in C++."""


class Metrics(NamedTuple):
    """What a rank reported."""

    records: list[dict]


class Printed(NamedTuple):
    """What a virtual core printed, which shares its process's output with others."""

    data: bytes


class Spans(NamedTuple):
    """What `spans.Recorder.take` gave."""

    spans: list[tuple[str, float, float, str]]


class Returned(NamedTuple):
    """The function's result; if it is large, its file follows."""

    kind: str  # the name of its class
    frames: list[Frame]  # the first line of the function
    parcel: Parcel
    trained: bool  # an optimizer has made a step
    sent: bool  # anything to another rank, or received it


class Failure(NamedTuple):
    """What ended a rank: an error, a result that cannot travel, or the death of its process.

    The first one of a launch counts; a death has the time 0, before all that others raised because
    of it.
    """

    time: float
    cause: str  # the name of the exception's class, of the signal, …
    happened: str  # "raised ValueError: bad shard"
    frames: list[Frame]  # outermost first
    traceback: str  # "" for a process that died


Message = At | WithoutThese | Interrupted | Metrics | Printed | Spans | Returned | Failure


@dataclass
class Session:
    """A rank's end of the connection to the notebook."""

    rank: int
    connection: Connection
    started: float
    # Held by whoever writes, because a TPU's cores share a connection.
    lock: Any = field(default_factory=threading.Lock)
    # Threads of the function report at the same time, while another one sends.
    records: deque[dict] = field(default_factory=deque)
    numbers: itertools.count = field(default_factory=itertools.count)  # of the records
    pid: int = field(default_factory=os.getpid)

    def send(self, message: Message, file: File | None = None) -> None:
        with self.lock:
            self.connection.send((self.rank, message))
            if file is not None:
                reduction.send_handle(self.connection, file.descriptor, os.getppid())

    def send_if_free(self, message: Message) -> None:
        """Send it unless this very thread may be sending, which a signal has interrupted."""
        if self.lock.acquire(timeout=LOCKED_SECONDS):
            try:
                self.connection.send((self.rank, message))
            finally:
                self.lock.release()

    def flush(self) -> None:
        with self.lock:  # taken and sent in one, because nobody hears what comes after the result
            for _ in range(0, len(self.records), MOST_RECORDS):
                count = min(len(self.records), MOST_RECORDS)
                records = [self.records.popleft() for _ in range(count)]
                self.connection.send((self.rank, Metrics(records)))


_thread = threading.local()
_process: Session | None = None


def set_session(session: Session, *, whole_process: bool) -> None:
    """From now on this thread, or every thread of this process, is the rank of `session`."""
    global _process
    if whole_process:
        _process = session
    else:
        _thread.session = session


def current() -> Session | None:
    """This rank's session; None in the notebook, under `torchrun`, in a rank's child processes."""
    session = getattr(_thread, "session", _process)
    if session is None or session.pid != os.getpid():
        return None
    return session
