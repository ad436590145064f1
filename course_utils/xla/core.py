"""What happens inside the process of a TPU's cores, real or virtual. The notebook's side: `process.py`, `launch.py`.

On a TPU, `torch_xla.launch` starts a process a chip. On XLA's CPU client one process holds all cores, each a thread
with a device of its own: that is how torch_xla runs there, and `replicas.py` makes it work. With SPMD there is one
thread, and all cores are devices of one program.
"""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from ..ranks.rank import enter, leave, run, take_over
from ..ranks.session import Session, Task, begin, watch
from . import tpu

SPMD, REPLICAS = "SPMD", "one replica a core"  # `Task.backend`

# Kept here, not passed on: processes of `torch_xla.launch` inherit them, and connections cannot be pickled.
_lines: list[tuple[Task, Connection, Connection]] = []  # what each core gets, its connection and its output
_sessions: list[Session] = []  # of the cores that this process holds
_starting = threading.Lock()


def main(connections: list[Connection], outputs: list[Connection], shared: Connection) -> None:
    """Run the cores, a connection and an output each; the caller is `Cores.start`. Never returns.

    `shared` gets what is printed below Python, by XLA itself, which knows no threads.
    """
    enter(shared)
    try:
        tasks: list[Task] = [connection.recv() for connection in connections]
    except EOFError:  # the notebook changed its mind
        os._exit(0)
    imported = dict(os.environ)  # torch_xla, imported by the server, left its own settings here
    take_over(tasks[0])
    for name, value in imported.items():
        os.environ.setdefault(name, value)
    import torch

    torch.set_num_threads(tasks[0].threads)
    _lines[:] = zip(tasks, connections, outputs, strict=True)
    if os.environ["PJRT_DEVICE"] == "TPU":
        tpu.forget_presets()  # the server may have inherited them
    if tasks[0].backend == SPMD:
        _program()
    elif os.environ["PJRT_DEVICE"] == "TPU":
        _chips()
    else:
        _threads()
    leave(connections)


def _program() -> None:
    import torch_xla.runtime as xr

    _one(0, xr.use_spmd)


def _chips() -> None:
    import torch_xla

    torch_xla.launch(_one, start_method="fork")


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
    pjrt._run_thread_per_device(0, 1, lambda: _one(xr.global_ordinal(), replicas.prepare), initialize)


def start_autograd() -> None:
    """Let autograd start its threads, one a device, now that XLA has its devices; it does so in its first backward.

    Else the first backward might find too few of them (a CPU's, before XLA was used), or be several cores' at once.
    """
    import torch

    torch.ones((), requires_grad=True).backward()


def _one(core: int, prepare: Callable[[], None] = lambda: None) -> None:
    """Be core `core`, from the first line to the result."""
    task, connection, output = _lines[core]
    session = Session(core, connection, task.began)
    begin(session, whole_process=False)
    with _starting:
        if not _sessions:
            _begin_process()
        _sessions.append(session)
    _ByThread.here.stream = open(output.fileno(), "w", buffering=1, closefd=False)  # noqa: SIM115
    session.send("at", session.pid, threading.get_ident())  # where it can be found when it is stuck
    run(session, task, prepare)


def _begin_process() -> None:
    """Once in each process that holds cores."""
    faulthandler.enable(file=2, all_threads=True)  # where every core was when XLA ended the process, or it crashed
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    threading.Thread(target=watch, args=(_sessions,), daemon=True).start()
    sys.stdout, sys.stderr = _ByThread(sys.stdout), _ByThread(sys.stderr)


class _ByThread(io.TextIOBase):
    """Standard output for several cores in one process: a core's thread writes to its own, any other to `rest`."""

    here = threading.local()

    def __init__(self, rest: io.TextIOBase) -> None:
        self.rest = rest

    def _stream(self) -> io.TextIOBase:
        return getattr(self.here, "stream", self.rest)

    def write(self, text: str) -> int:
        return self._stream().write(text)

    def flush(self) -> None:
        self._stream().flush()

    def fileno(self) -> int:
        return self._stream().fileno()

    def writable(self) -> bool:
        return True
