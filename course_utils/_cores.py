"""What happens inside the process of a TPU's cores, real or virtual. The notebook's side: `_core_process.py`, `xla.py`.

On a TPU, `torch_xla.launch` starts a process a chip. On XLA's CPU client one process holds all cores, each a thread
with a device of its own: that is how torch_xla runs there, and `_replicas.py` makes it work. With SPMD there is one
thread, and all cores are devices of one program.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection

from ._rank import enter, leave, run, take_over
from ._session import Session, Task, begin, current, watch

SPMD, REPLICAS = "SPMD", "one replica a core"  # `Task.backend`

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
    cores = _Cores(tasks, connections, outputs)
    if tasks[0].backend == SPMD:
        cores.whole_program()
    elif os.environ["PJRT_DEVICE"] == "TPU":
        import torch_xla

        with contextlib.suppress(Exception):  # each core told the notebook what went wrong
            torch_xla.launch(cores.one, start_method="fork")
    else:
        cores.threads()
    leave(connections)


class _Cores:
    """The cores of one launch; in a process of `torch_xla.launch`, those of one chip."""

    def __init__(self, tasks: list[Task], connections: list[Connection], outputs: list[Connection]) -> None:
        self.tasks, self.connections, self.outputs = tasks, connections, outputs

    def whole_program(self) -> None:
        import torch_xla.runtime as xr

        self._announce(0)
        run(current(), self.tasks[0], xr.use_spmd)

    def threads(self) -> None:
        """What `torch_xla.launch` does on a CPU, without its own process around it."""
        import torch_xla._internal.pjrt as pjrt

        from . import _replicas

        _replicas.install()
        pjrt._run_thread_per_device(0, 1, self._virtual, pjrt.initialize_multiprocess)

    def _virtual(self) -> None:
        import torch_xla.runtime as xr

        from . import _replicas

        self.one(xr.global_ordinal(), _replicas.prepare)

    def one(self, core: int, prepare: object = lambda: None) -> None:
        """Be core `core`, from the first line to the result."""
        self._announce(core)
        run(current(), self.tasks[core], prepare)

    def _announce(self, core: int) -> None:
        """Connect this thread to the notebook as `core`, and say where it can be found when it is stuck."""
        session = Session(core, self.connections[core], self.tasks[core].began)
        begin(session, whole_process=False)
        with _starting:
            if not any(other.pid == session.pid for other in _sessions):  # the first core of this process
                _sessions.clear()
                faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
                threading.Thread(target=watch, args=(_sessions,), daemon=True).start()
                sys.stdout, sys.stderr = _ByThread(sys.stdout), _ByThread(sys.stderr)
            _sessions.append(session)
        _ByThread.here.stream = open(self.outputs[core].fileno(), "w", buffering=1, closefd=False)  # noqa: SIM115
        session.send("at", session.pid, threading.get_ident())


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
