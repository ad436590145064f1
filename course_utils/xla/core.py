"""What happens inside the process of a TPU's cores; `launcher.py` is the notebook's side.

On a TPU, `torch_xla.launch` starts a process a chip. On XLA's CPU client one process holds all
cores, each a thread with a device of its own (`replicas.py` makes that work). With SPMD one
thread's program has all cores as devices.
"""

import multiprocessing as mp
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TextIO

from ..ranks import program, state
from ..ranks.files import File
from ..ranks.rank import Outcome, close, run
from ..ranks.wire import Printed, Session, Task, WithoutThese, current, set_session
from .debug import wait_for_device

SPMD, REPLICAS = "SPMD", "one replica a core"  # `Task.backend`

# What every core gets, the connection that all share, and its lock. Kept here, not passed on:
# processes of `torch_xla.launch` inherit it, and a connection cannot be pickled.
_shared: tuple[Task, File | None, Connection, Any]

# The end of a process belongs to the call, so the last of its cores waits for it.
_unfinished = 0  # cores of this process
_last: tuple[Session, Outcome] | None = None
_finishing = threading.Lock()


def main(ranks: list[int], connection: Connection, task: Task, file: File | None) -> None:
    """Run all cores; what XLA prints, which knows no cores, goes to the process's output."""
    global _unfinished
    if left_out := state.restore(task.state, task.threads):
        connection.send((0, WithoutThese([*left_out])))
    import torch_xla.runtime as xr

    share(task, file, connection)
    if task.backend == SPMD:
        _unfinished = 1
        _run_core(0, xr.use_spmd)
    elif os.environ["PJRT_DEVICE"] == "TPU":
        chips()  # a process each
    else:
        _unfinished = len(ranks)
        _threads()
    if _last:
        close(*_last, program.end)


def share(task: Task, file: File | None, connection: Connection) -> None:
    """Give all cores this, be they threads or processes."""
    global _shared
    _shared = task, file, connection, mp.get_context("fork").Lock()
    sys.stdout = _ByCore(sys.stdout)
    sys.stderr = _ByCore(sys.stderr)
    import torch_xla.core.xla_model as xm

    vars(xm)["master_print"].__kwdefaults__["fd"] = sys.stdout  # else that of its import
    threading.Thread.start = _as_its_core(threading.Thread.start)  # ty: ignore


def _as_its_core(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Let a thread that a core starts report and print as this core."""

    def begin(thread: threading.Thread) -> None:
        session, run_thread = current(), thread.run

        def run_as_core() -> None:
            if session is not None:
                set_session(session, whole_process=False)
            run_thread()

        thread.run = run_as_core
        start(thread)

    return begin


def chips() -> None:
    import torch_xla

    torch_xla.launch(_run_core, start_method="fork")


def _threads() -> None:
    """What `torch_xla.launch` does on a CPU, without its own process around it."""
    import torch_xla._internal.pjrt as pjrt
    import torch_xla.runtime as xr

    from . import replicas

    def initialize(rank: int, ranks: int) -> None:
        pjrt.initialize_multiprocess(rank, ranks)
        start_autograd()
        replicas.make_tokens()

    replicas.install()

    def one() -> None:
        _run_core(xr.global_ordinal(), replicas.prepare)

    pjrt._run_thread_per_device(0, 1, one, initialize)


def start_autograd() -> None:
    """Autograd starts a thread for each device in its first backward: XLA must have its devices."""
    import torch

    torch.ones((), requires_grad=True).backward()


def _run_core(core: int, prepare: Callable[[], None] = lambda: None) -> None:
    global _unfinished, _last
    task, file, connection, lock = _shared
    session = Session(core, connection, task.started, lock)
    set_session(session, whole_process=False)

    def begin() -> None:
        prepare()
        state.set_for_thread(task.state)

    # Only when its device has finished has a function come to its end.
    outcome = run(session, task.call, file, begin, finish=wait_for_device)
    with _finishing:
        _unfinished -= 1
        is_last = _unfinished == 0
    if outcome and is_last:
        _last = session, outcome
    elif outcome:
        close(session, outcome)


class _ByCore:
    """Standard output of several cores: what a core's thread prints goes to the notebook.

    All else goes to `rest`.
    """

    def __init__(self, rest: TextIO) -> None:
        self.rest = rest

    def write(self, text: str) -> int:
        session = current()
        if session is None:
            return self.rest.write(text)
        session.send(Printed(text.encode(errors="backslashreplace")))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rest, name)  # flush, fileno, …
