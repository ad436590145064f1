"""What travels between the notebook and its ranks, and the connection on which a rank sends.

Everything travels by value, functions and classes of cells included. A virtual core of a TPU is a
thread (`xla/core.py`), so a rank's session is found by thread first, then by process.
"""

import importlib
import io
import os
import sys
import threading
import types
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from ..errors import CourseError


@dataclass(frozen=True)
class Task:
    """What the notebook sends to every rank."""

    payload: bytes  # `dumps` of (function, args, kwargs)
    cells: dict  # linecache entries of the notebook's cells, so that tracebacks show their lines
    env: dict[str, str]
    cwd: str
    ranks: int  # of all
    device: str  # "cpu", "cuda", "xpu", "xla"
    backend: str | None  # None: no process group
    threads: int
    timeout: float | None  # seconds a collective may wait
    began: float  # time.perf_counter() at the launch: one clock for all processes of a machine


@dataclass
class Session:
    """A rank's end of the connection to the notebook."""

    rank: int
    connection: Connection
    began: float
    # Held by whoever writes, because a TPU's cores share a connection.
    lock: AbstractContextManager = field(default_factory=threading.Lock)
    records: list[dict] = field(default_factory=list)
    reports: int = 0
    pid: int = field(default_factory=os.getpid)

    def send(self, kind: str, *values: Any) -> None:
        with self.lock:
            self.connection.send((self.rank, kind, *values))

    def flush(self) -> None:
        with self.lock:  # taken and sent in one, because nobody hears what comes after the result
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
    """This rank's session; None in the notebook, under `torchrun`, in a rank's child processes."""
    session = getattr(_thread, "session", _process)
    if session is None or session.pid != os.getpid():
        return None
    return session


class Pickler(cloudpickle.CloudPickler):
    """As cloudpickle, but tensors on an XLA device arrive on the CPU.

    In another process that device is another one, or taken.
    """

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch and isinstance(value, torch.Tensor) and value.device.type == "xla":
            copy = value.detach().cpu().requires_grad_(value.requires_grad)
            if isinstance(value, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, requires_grad=value.requires_grad)
            return copy.__reduce_ex__(4)
        # cloudpickle knows modules by their type, and torch.backends.cudnn has a type of its own.
        if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


class CannotBeSent(CourseError):
    """A function or a value that no other process can get; `why`, in the words of who pickles."""

    def __init__(self, refusal: str, why: Exception) -> None:
        super().__init__(f"{refusal}: {why}")
        self.why = why


def dumps(value: object, refusal: str) -> bytes:
    """`value`, with what cells define, as bytes for `pickle.loads`.

    Raises:
        CannotBeSent: its message begins with `refusal`.
    """
    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except Exception as error:
        raise CannotBeSent(refusal, error) from None
    return file.getvalue()
