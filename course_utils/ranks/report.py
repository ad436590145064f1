"""A rank's line to the notebook: what travels on it, by value, and `report()`, which sends metrics while it runs.

Outside a rank `report` does nothing, so that the same function runs unchanged under `torchrun`. A virtual core of a
TPU is a thread (`xla/core.py`), so the line is found by thread first, then by process.
"""

import importlib
import io
import itertools
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
import traceback
import types
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from ..errors import CourseError, Frame
from ..pictures.live import as_float

SEND_EVERY = 0.1  # seconds; metrics travel in batches, so that a report costs a step microseconds
AT_EVERY = 5  # times that: where a rank is


@dataclass(frozen=True)
class Task:
    """What the notebook sends to every rank."""

    payload: bytes  # `dumps` of (function, args, kwargs)
    cells: dict  # linecache entries of the notebook's cells, so that tracebacks show their lines
    env: dict[str, str]
    cwd: str
    device: str  # "cpu", "cuda", "xpu", "xla"
    backend: str | None  # None: no process group
    threads: int
    timeout: float | None  # seconds a collective may wait
    began: (
        float  # time.perf_counter() when the launch began: one clock for all processes of a machine
    )


@dataclass
class Session:
    """This rank's line to the notebook; `lock` is held by whoever writes to a connection that several ranks share."""

    rank: int
    connection: Connection
    began: float
    lock: AbstractContextManager = field(default_factory=threading.Lock)
    records: list[dict] = field(default_factory=list)
    reports: int = 0
    pid: int = field(default_factory=os.getpid)

    def send(self, kind: str, *values: Any) -> None:
        with self.lock:
            self.connection.send((self.rank, kind, *values))

    def flush(self) -> None:
        with (
            self.lock
        ):  # taken and sent in one: a record that came after the result would not be heard
            records, self.records = self.records, []
            if records:
                self.connection.send((self.rank, "metrics", records))


_thread = threading.local()
_process: Session | None = None


def begin(session: Session, *, whole_process: bool) -> None:
    """From now on this thread, or every thread of this process, is the rank of `session`."""
    global _process
    if whole_process:
        _process = session
    else:
        _thread.session = session


def current() -> Session | None:
    """The session of this rank; None in the notebook, under `torchrun`, and in a rank's own child processes."""
    session = getattr(_thread, "session", _process)
    return session if session is not None and session.pid == os.getpid() else None


def report(step: int | None = None, **values: float) -> None:
    """Send one record of metrics to the notebook, for `run.metrics` and the live plot.

    Args:
        step: the x axis; counted from 0 when left out.
        values: numbers or 0-d tensors by name; `rank` and `time` are added by themselves.

    Raises:
        TypeError, ValueError, RuntimeError: a value is not one number, or its name is `rank` or `time`.
    """
    record: dict[str, float] = {name: as_float(value) for name, value in values.items()}
    if (session := current()) is not None:
        step = session.reports if step is None else int(as_float(step))
        session.reports += 1
        seconds = time.perf_counter() - session.began
        session.records.append(dict(rank=session.rank, time=seconds, step=step, **record))


def watch(session: Session, thread: int) -> None:
    """Send what the rank reports, and where it is; end, children included, when the notebook's process is gone."""
    parent = mp.parent_process().sentinel
    for tick in itertools.count():
        if wait([parent], SEND_EVERY):
            break
        try:
            session.flush()
            if tick % AT_EVERY == 0:
                session.send("at", _where(thread), time.process_time())
        except OSError:
            break
    os.killpg(0, signal.SIGKILL)


def _where(thread: int) -> list[Frame]:
    """Where this thread is, in Python or in a call that waits; innermost first.

    A function of its own, because a frame that somebody still knows keeps its tensors: memory, and on virtual cores
    programs of another core's shape, which never meet.
    """
    frame = sys._current_frames().get(thread)
    return (
        [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_stack(frame)]
        if frame
        else []
    )


class Pickler(cloudpickle.CloudPickler):
    """As cloudpickle, but tensors on an XLA device arrive on the CPU: there, that device is another one, or taken."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch and isinstance(value, torch.Tensor) and value.device.type == "xla":
            copy = value.detach().cpu().requires_grad_(value.requires_grad)
            if isinstance(value, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, requires_grad=value.requires_grad)
            return copy.__reduce_ex__(4)
        # cloudpickle knows modules by their exact type, and torch.backends.cudnn is one of a type of its own.
        if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


class CannotBeSent(CourseError):
    """A function or a value that no other process can get; `why`, in the words of who pickles."""

    def __init__(self, refusal: str, why: Exception) -> None:
        super().__init__(f"{refusal}: {why}")
        self.why = why


def dumps(value: object, refusal: str) -> bytes:
    """`value`, with what cells define, as bytes for `pickle.loads`; else a CannotBeSent that begins with `refusal`."""
    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except Exception as error:
        raise CannotBeSent(refusal, error) from None
    return file.getvalue()
