"""The processes of one launch, seen from the notebook: start them, hear them, ask where they are, end them."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing as mp
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import psutil

from ..errors import CourseError
from . import failures
from . import rank as inside
from .server import fork, warm_up
from .session import Task
from .stopping import StopLine, uninterrupted

GRACE = 0.5  # seconds between asking a process to end and ending it
PIPE_READS = 32  # of 64 KiB each: a pipe holds one, unless it was told to hold more
ANSWER = 0.3  # seconds a rank has to say where it is
STACK = b"(most recent call first):"  # how faulthandler begins
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')

_running: weakref.WeakSet[Ranks] = weakref.WeakSet()


class Ranks:
    """`count` processes, numbered from 0; use as a context manager, so that none outlives the launch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        self.outputs: list[Connection] = []
        self._ended = False
        self._stop = StopLine()
        self._lock = threading.Lock()
        self._alive: dict[int, tuple[BaseProcess, list[int]]] = {}  # sentinel -> the ranks it stands for
        self._open: dict[Connection, int] = {}  # pipe or output -> rank

    def __enter__(self) -> Ranks:
        _running.add(self)
        self._stop.open()
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            with uninterrupted():
                self.end()
        finally:
            _running.discard(self)
            self._stop.close()
        if self._stop.asked and kind is None:  # it came too late to be heard
            raise KeyboardInterrupt

    def start(self, task: Task) -> None:
        """Start all ranks and hand them the task.

        In a thread, because an interrupt reaches the main thread alone: one that came between two lines of
        `Process.start` would leave a rank nobody knows of.
        """
        warm_up()
        failed: list[BaseException] = []
        thread = threading.Thread(target=self._start_all, args=(failed,), daemon=True)
        thread.start()
        thread.join()
        if failed:
            raise CourseError(
                f"no rank could be forked ({type(failed[0]).__name__}: {failed[0]}): the server that ranks are "
                "forked from ended, perhaps while importing torch; `python -m course_utils.ranks.preload` in a "
                "terminal shows why"
            ) from failed[0]
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # it died already: its exit code comes by itself
                pipe.send(task)

    def _start_all(self, failed: list[BaseException]) -> None:
        for rank in range(self.count):
            ours, theirs = mp.Pipe()
            read, write = mp.Pipe(duplex=False)
            try:
                process = fork(inside.main, rank, theirs, write, name=f"rank {rank}")
            except (EOFError, OSError) as error:
                failed.append(error)
                return
            theirs.close()
            write.close()
            with self._lock:
                if self._ended:  # interrupted: the rank finds its pipe closed and leaves
                    ours.close()
                    read.close()
                    return
                self.processes.append(process)
                self.pipes.append(ours)
                self.outputs.append(read)
                self._alive[process.sentinel] = (process, [rank])
                self._open |= {ours: rank, read: rank}

    def hear(self, timeout: float | None) -> Iterator[tuple[int, str, object]]:
        """Yield (rank, kind, value) of what arrived within `timeout` seconds.

        Kinds: "output" (bytes), "died" (exit code, negative for a signal), and those that `rank.py` sends.
        Raises KeyboardInterrupt when another thread stops the launch.
        """
        for source in wait([self._stop.source, *self._open, *self._alive], timeout):
            if source is self._stop.source:
                raise KeyboardInterrupt
            if source in self._alive:
                process, ranks = self._alive.pop(source)
                process.join(1)
                for pipe in [self.pipes[rank] for rank in ranks]:
                    while pipe in self._open and pipe.poll():
                        yield from self._receive(pipe)
                yield from [(rank, "died", process.exitcode) for rank in ranks]
            elif source in self._open:
                yield from self._read(source) if source in self.outputs else self._receive(source)

    def _receive(self, pipe: Connection) -> Iterator[tuple[int, str, object]]:
        rank = self._open[pipe]
        try:
            kind, *values = pipe.recv()
        except (EOFError, OSError):
            del self._open[pipe]
        else:
            yield rank, kind, values

    def _read(self, output: Connection) -> Iterator[tuple[int, str, object]]:
        rank = self._open[output]
        if data := os.read(output.fileno(), 1 << 16):
            yield rank, "output", data
        else:
            del self._open[output]

    def who(self, rank: int) -> str:
        """One rank, in a message."""
        return f"rank {rank} of {self.count}"

    def death(self, rank: int, exitcode: int | None, *, out_of_memory: bool) -> tuple[str, str]:
        """(cause, sentence) for the end of a rank's process."""
        return failures.died(self.who(rank), exitcode, out_of_memory=out_of_memory)

    def drain(self) -> Iterator[tuple[int, str, object]]:
        """What ranks printed and nobody read yet: what a pipe can hold, not more, since one may print for ever."""
        for output in self.outputs:
            for _ in range(PIPE_READS):
                if output not in self._open or not wait([output], 0):
                    break
                yield from self._read(output)

    def where(self, ranks: list[int]) -> dict[int, list[tuple[str, int, str]]]:
        """Ask living ranks where they are: rank -> frames (file, line, function), innermost first.

        Works for a rank that is stuck in a collective: `faulthandler` answers from a signal handler, into the output.
        """
        alive = {rank for _, held in self._alive.values() for rank in held}
        asked = [rank for rank in ranks if rank in alive]
        for rank in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[rank].pid, signal.SIGUSR1)
        text = dict.fromkeys(asked, b"")
        deadline = time.monotonic() + ANSWER
        while asked and (left := deadline - time.monotonic()) > 0:
            for output in wait([self.outputs[rank] for rank in asked], left):
                text[self._open[output]] += os.read(output.fileno(), 1 << 16)
            if all(STACK in data for data in text.values()):
                deadline = min(deadline, time.monotonic() + ANSWER / 5)  # the last lines of the longest stack
        return {rank: frames(data.decode(errors="replace")) for rank, data in text.items()}

    def silent(self, rank: int) -> str:
        """What to say of a living rank that did not answer."""
        pid = self._pid(rank)
        try:
            stopped = psutil.Process(pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            stopped = False
        if stopped:
            return f"does not answer: its process is stopped (SIGSTOP); `kill -CONT {pid}` in a terminal lets it go on"
        return "does not answer"

    def _pid(self, rank: int) -> int:
        return self.processes[rank].pid

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
        with self._lock:
            self._ended = True
        for pipe in self.pipes:
            pipe.close()
        self._signal_groups(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for process in self.processes:
            process.join(max(0, deadline - time.monotonic()))
        self._signal_groups(signal.SIGKILL)
        for process in self.processes:
            process.join(5)
        for output in self.outputs:
            output.close()
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


def frames(stack: str) -> list[failures.Frame]:
    """What `faulthandler` wrote of one thread, innermost frame first."""
    return [(m["file"], int(m["line"]), m["name"]) for m in FRAME.finditer(stack)]


def running() -> bool:
    """Whether a launch is under way in this process."""
    return bool(_running)


@atexit.register  # runs before multiprocessing's own exit handler, which would wait for the ranks
def _end_all() -> None:
    for ranks in list(_running):
        ranks.end()
