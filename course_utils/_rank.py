"""What happens inside a rank: its environment, its process group, `report()`, `span()`, and the way back.

The notebook's side is `launch.py`. Outside a rank, `report` and `span` do nothing, so that the same function
runs unchanged under `torchrun`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

from ._number import number
from ._spans import SpanClock, recorder, span
from .errors import MetricError

__all__ = ["Task", "current", "main", "report", "span"]

SEND_EVERY = 0.1  # seconds; metrics travel in batches, so that a report costs a step microseconds


@dataclass(frozen=True)
class Task:
    """What the notebook sends to every rank."""

    payload: bytes  # cloudpickle of (function, args, kwargs)
    cells: dict  # linecache entries of the notebook's cells, so that tracebacks show their lines
    env: dict[str, str]
    cwd: str
    device: str  # "cpu", "cuda", "xpu"
    backend: str | None  # None: no process group
    threads: int
    timeout: float | None  # seconds a collective may wait
    began: float  # time.perf_counter() when the launch began: one clock for all processes of a machine


@dataclass
class _Session:
    """This rank's line to the notebook."""

    rank: int
    connection: Connection
    began: float
    records: list[dict] = field(default_factory=list)
    reports: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    pid: int = field(default_factory=os.getpid)

    def send(self, *message: Any) -> None:
        with self.lock:
            self.connection.send(message)

    def flush(self) -> None:
        records, self.records = self.records, []
        if records:
            self.send("metrics", records)


_session: _Session | None = None


def current() -> _Session | None:
    """The session of this rank; None in the notebook, under `torchrun`, and in a rank's own child processes."""
    return _session if _session is not None and _session.pid == os.getpid() else None


def report(step: int | None = None, **values: float) -> None:
    """Send one record of metrics to the notebook, for `run.metrics` and the live plot.

    Args:
        step: the x axis; counted from 0 when left out.
        values: numbers or 0-d tensors by name; `rank` and `time` are added by themselves.

    Raises:
        MetricError: a value is not one number; the traceback shows the line that reported it.
    """
    record: dict[str, float] = {name: number(name, value) for name, value in values.items()}
    if taken := {"rank", "time"} & values.keys():
        raise MetricError(f"report({sorted(taken)[0]}=…): that name is filled in by itself; choose another one")
    step = None if step is None else int(number("step", step))
    if (session := current()) is None:
        return
    head = {
        "rank": session.rank,
        "time": time.perf_counter() - session.began,
        "step": session.reports if step is None else step,
    }
    session.reports += 1
    session.records.append(head | record)


def main(rank: int, connection: Connection, output: Connection) -> None:
    """Run one rank; the notebook's `Ranks.start` is the caller. Never returns."""
    global _session
    # A session of its own, as torchrun's workers have: interrupts of the kernel pass by, its children end with it, and
    # Linux, which shares the CPU between sessions first, gives it a share of its own.
    os.setsid()
    _die_with_the_server()
    _write_to(output)
    try:
        task: Task = connection.recv()
    except EOFError:  # the notebook changed its mind
        os._exit(0)
    mp.set_start_method("fork", force=True)  # else DataLoader workers could not get a Dataset defined in a cell
    os.environ.clear()
    os.environ.update(task.env, RANK=str(rank), LOCAL_RANK=str(rank))
    os.chdir(task.cwd)
    linecache.cache.update(task.cells)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)  # "where are you?", asked by the notebook
    session = _session = _Session(rank, connection, task.began)
    threading.Thread(target=_watch, args=(session,), daemon=True).start()
    try:
        _join_group(rank, task)
        function, args, kwargs = pickle.loads(task.payload)
        result = function(*args, **kwargs)
        _finish(session, result)
    except BaseException as error:
        sys.stdout.flush()
        session.flush()
        session.send("spans", _spans())
        session.send("error", time.perf_counter(), *describe(error))
    with contextlib.suppress(EOFError, OSError):
        connection.recv()  # keep the sockets open until the notebook lets go: no secondary errors on the peers
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _finish(session: _Session, result: object) -> None:
    import cloudpickle

    try:
        payload = cloudpickle.dumps(result)
    except Exception as error:
        raise TypeError(
            f"the function returned a {type(result).__name__}, which cannot be sent back to the notebook ({error}); "
            "return tensors, numbers, strings, or lists and dicts of them"
        ) from None
    sys.stdout.flush()
    session.flush()
    session.send("spans", _spans())
    session.send("result", payload)


def _spans() -> list[tuple]:
    try:
        return recorder.take()
    except Exception as error:  # a device that failed cannot say when its events happened
        print(f"the timeline was lost: {error}", file=sys.stderr)
        return []


def _join_group(rank: int, task: Task) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(task.threads)
    torch.seed()  # the server's state is every rank's: unseeded ranks are to differ, as under torchrun
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    device_id = None
    if task.device != "cpu":
        index = rank % torch.accelerator.device_count()
        torch.accelerator.set_device_index(index)
        device_id = torch.device(task.device, index)
    recorder.begin(SpanClock.on(task.device))
    if task.backend is not None:
        options = {} if task.timeout is None else {"timeout": timedelta(seconds=task.timeout)}
        if device_id is not None and task.backend != "gloo":
            options["device_id"] = device_id
        dist.init_process_group(task.backend, **options)


def describe(error: BaseException) -> tuple[str, str, list[tuple], str]:
    """An exception as text: (class name, message, frames as (file, line, function, source), formatted traceback)."""
    ours = os.path.dirname(__file__) + os.sep
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    text = "".join(traceback.TracebackException.from_exception(error).format())
    rows = [(f.filename, f.lineno, f.name, f.line or "") for f in frames]
    name = type(error).__name__
    return name, str(error), rows, text


def _write_to(output: Connection) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (lives as long as the process)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _watch(session: _Session) -> None:
    """Send metrics in batches; leave, children included, when the notebook's process is gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # the main thread is the one to say where it is
    parent = mp.parent_process().sentinel
    while not wait([parent], SEND_EVERY):
        try:
            session.flush()
        except OSError:
            break
    os.killpg(0, signal.SIGKILL)


def _die_with_the_server() -> None:
    """The server ends when the kernel does; a rank that is stuck holding the GIL must end with it, too."""
    from multiprocessing import forkserver

    server = forkserver._forkserver
    if server._forkserver_alive_fd is not None:  # inherited: while ranks hold it, the server would stay
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
