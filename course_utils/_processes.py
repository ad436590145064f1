"""The processes of one launch, seen from the notebook: start them from a clean server, hear them, end them.

Ranks are forked from `multiprocessing`'s fork server, preloaded with torch (`_preload.py`): it never ran a kernel's
code, so it is safe after the kernel has used CUDA or a thread pool, and a rank takes milliseconds, not seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing as mp
import os
import re
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd

from . import _rank
from .errors import LaunchError

GRACE = 0.5  # seconds between asking a process to end and ending it
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')

_starting = threading.Lock()
_running: weakref.WeakSet[Ranks] = weakref.WeakSet()


def warm_up() -> None:
    """Start, in the background, the server that ranks are forked from; returns at once.

    It imports torch by itself (two to four seconds), so that the first `launch` finds it ready.
    """
    if sys.platform == "win32":
        return
    from multiprocessing import forkserver

    context = mp.get_context("forkserver")
    with _starting:
        context.set_forkserver_preload(["course_utils._preload"])
        thread_limits = {"OPENBLAS_NUM_THREADS": "1"}  # a process with a thread pool cannot be forked safely
        kept = {name: os.environ.get(name) for name in thread_limits}
        os.environ.update(thread_limits)
        # The server and all ranks inherit the mask: interrupts are for the kernel alone.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for name, value in kept.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


class Ranks:
    """`count` processes, numbered from 0; use as a context manager, so that none outlives the launch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.processes: list[mp.process.BaseProcess] = []
        self.pipes: list[mp.connection.Connection] = []
        self.outputs: list[int] = []
        self._alive: dict[int, int] = {}  # sentinel -> rank
        self._open: dict[object, int] = {}  # pipe or output -> rank

    def __enter__(self) -> Ranks:
        _running.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():
            self.end()
        _running.discard(self)

    def start(self, task: _rank.Task) -> None:
        warm_up()
        context = mp.get_context("forkserver")
        for rank in range(self.count):
            ours, theirs = mp.Pipe()
            self.pipes.append(ours)
            read, write = os.pipe()
            self.outputs.append(read)
            process = context.Process(
                target=_rank.main, args=(rank, theirs, DupFd(write)), name=f"rank {rank}", daemon=False
            )
            try:
                with _starting, _no_main_module():
                    process.start()
            except (EOFError, ConnectionError) as error:
                raise LaunchError(
                    "the server that ranks are forked from ended while it was importing torch; "
                    "`python -c 'import course_utils._preload'` in a terminal shows why"
                ) from error
            finally:
                theirs.close()
                os.close(write)
            self.processes.append(process)
            self._alive[process.sentinel] = rank
            self._open |= {ours: rank, read: rank}
        for rank, pipe in enumerate(self.pipes):
            with contextlib.suppress(OSError):  # it died already: its exit code comes by itself
                pipe.send(task)
            del rank

    def hear(self, timeout: float | None) -> Iterator[tuple[int, str, object]]:
        """Yield (rank, kind, value) of what arrived within `timeout` seconds.

        Kinds: "output" (bytes), "died" (exit code, negative for a signal), and those that `_rank.py` sends.
        """
        for source in wait([*self._open, *self._alive], timeout):
            if source in self._alive:
                rank = self._alive.pop(source)
                process, pipe = self.processes[rank], self.pipes[rank]
                process.join(1)
                while pipe in self._open and pipe.poll():
                    yield from self._receive(pipe)
                yield rank, "died", process.exitcode
            elif isinstance(source, int):
                if source in self._open:
                    yield from self._read(source)
            elif source in self._open:
                yield from self._receive(source)

    def _receive(self, pipe: mp.connection.Connection) -> Iterator[tuple[int, str, object]]:
        rank = self._open[pipe]
        try:
            kind, *values = pipe.recv()
        except (EOFError, OSError):
            del self._open[pipe]
        else:
            yield rank, kind, values

    def _read(self, output: int) -> Iterator[tuple[int, str, object]]:
        rank = self._open[output]
        if data := os.read(output, 1 << 16):
            yield rank, "output", data
        else:
            del self._open[output]

    def drain(self) -> Iterator[tuple[int, str, object]]:
        """What ranks printed and nobody read yet."""
        for output in [source for source in self._open if isinstance(source, int)]:
            while output in self._open and wait([output], 0):
                yield from self._read(output)

    def where(self, ranks: list[int]) -> dict[int, list[tuple[str, int, str]]]:
        """Ask living ranks where they are: rank -> frames (file, line, function), innermost first.

        Works for a rank that is stuck in a collective: `faulthandler` answers from a signal handler.
        """
        asked = [rank for rank in ranks if rank in self._alive.values()]
        for _ in self.drain():
            pass
        for rank in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[rank].pid, signal.SIGUSR1)
        text = dict.fromkeys(asked, b"")
        deadline = time.monotonic() + 0.3
        while asked and (left := deadline - time.monotonic()) > 0:
            for output in wait([self.outputs[rank] for rank in asked], left):
                rank = self._open.get(output)
                text[rank] += os.read(output, 1 << 16)
                if text[rank].count(b"\n") > 1:
                    deadline = min(deadline, time.monotonic() + 0.1)
        return {
            rank: [(m["file"], int(m["line"]), m["name"]) for m in FRAME.finditer(data.decode(errors="replace"))]
            for rank, data in text.items()
        }

    def release(self) -> None:
        """Let ranks that have finished leave."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send("leave")
        deadline = time.monotonic() + GRACE
        for process in self.processes:
            process.join(max(0, deadline - time.monotonic()))

    def end(self) -> None:
        """End every process, the ranks' own children included, and close everything. Idempotent."""
        for pipe in self.pipes:
            pipe.close()  # also tells a rank that is still to be forked to leave
        self._signal_groups(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for process in self.processes:
            process.join(max(0, deadline - time.monotonic()))
        self._signal_groups(signal.SIGKILL)
        for process in self.processes:
            process.join(5)
        for output in self.outputs:
            os.close(output)
        self.pipes, self.processes, self.outputs = [], [], []
        self._alive, self._open = {}, {}

    def _signal_groups(self, number: signal.Signals) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, number)
            except (ProcessLookupError, PermissionError):  # no group yet, or nobody left in it
                if process.is_alive():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, number)


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


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """The function travels by value: a rank must not run the notebook, or a script, again to find it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@atexit.register  # runs before multiprocessing's own exit handler, which would wait for the ranks
def _end_all() -> None:
    for ranks in list(_running):
        ranks.end()
