"""The processes of one launch, seen from the notebook: start them, hear them, end them, leave
nothing behind.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import psutil

from ..errors import CourseError, RankError, in_words
from ..pictures.live import LivePlot
from ..timeline import Span, Timeline
from .failures import died, failed, too_late
from .output import Output, Status
from .run import Run
from .server import fork, warm_up
from .values import File, unpack
from .whereabouts import Stacks, Whereabouts
from .wire import At, Failure, Metrics, Printed, Returned, Spans, Task

INTERRUPT_SECONDS = 2.0  # in which a rank may end after an interrupt, as a script after Ctrl+C
TERMINATE_SECONDS = 2.0  # between asking a process to end and killing it
KILL_SECONDS = 10.0  # in which a process that was killed lets go of its device
END_SECONDS = 2.0  # in which a process that has raised may end as Python does
CLEANUP_SECONDS = 10.0  # the same for what removes the files of a process that was killed
POLL_SECONDS = 1.0  # at most that the supervisor listens before it looks at its limits
ALONE = (
    "No rank has sent anything to another, so each has trained a model of its own: wrap the model "
    "in DDP, or tell Trainer or Fabric devices={}."
)
SETTLE_SECONDS = 0.1  # in which other ranks may be heard before the first cause is named


class Worker(NamedTuple):
    """One process of a launch, and what comes from it."""

    ranks: list[int]  # those in it: one, or all of a TPU's virtual cores
    process: BaseProcess
    messages: Connection
    output: Connection  # what it prints
    last_words: File  # where it was when it crashed


class Supervisor:
    """All ranks of one launch: what they send fills `run`, what they report is drawn by `live`.

    Args:
        main: what each process runs.
        processes: the ranks that are in each of them.
    """

    def __init__(
        self,
        run: Run,
        main: Callable[..., None],
        processes: list[list[int]],
        *,
        live: LivePlot | None,
        show: bool,
    ) -> None:
        self.run, self.live = run, live
        run.results = [None] * run.ranks
        self.main, self.processes = main, processes
        self.output = Output(run.unit, show=show)
        self.status = Status()
        self.workers: list[Worker] = []
        self.sources: dict[Any, Callable[[], None]] = {}  # what is waited for: who takes it
        self.done: set[int] = set()
        self.alone = 0  # ranks that have trained, and sent nothing to another
        self.failures: dict[int | None, Failure] = {}  # by rank; None: cores that share a process
        self.whereabouts = Whereabouts(run)
        self.spans: list[Span] = []

    def supervise(self, task: Task, file: File | None, time_limit: float | None) -> Run:
        """Start all ranks, listen until all have returned or one failed, leave nothing behind.

        Args:
            file: that of the task's parcel.
        """
        if self.live is not None:
            self.live.open(self.run.unit)
        # Called before multiprocessing's own exit handler, which would wait for the ranks.
        atexit.register(self.end)
        try:
            with uninterrupted():  # else an interrupt might leave a process that nobody knows of
                self._start(pickle.dumps(task), file)
            del file  # its memory is the ranks' from now on
            self._listen(inf if time_limit is None else time_limit)
            self._drain()
        except KeyboardInterrupt as error:
            with uninterrupted():
                self._interrupt()
            # IPython's hook; scripts see the usual traceback.
            words = f"interrupted; every {self.run.unit} was ended."
            error._render_traceback_ = partial(in_words, error, words)  # ty: ignore
            raise
        finally:
            with uninterrupted():
                self.end()
            atexit.unregister(self.end)
            self._finish(time.perf_counter() - task.started)
        return self.run

    def _start(self, task: bytes, file: File | None) -> None:
        warm_up()
        for ranks in self.processes:
            messages, theirs = mp.Pipe()
            output, printed = mp.Pipe(duplex=False)
            last_words = File.new()
            try:
                process = fork(self.main, ranks, theirs, printed, last_words, task, file)
            except (EOFError, OSError) as error:
                raise CourseError(
                    f"no rank could be forked ({error!r}): the server that ranks are forked from "
                    "ended; `python -m course_utils.ranks.preload` in a terminal may show why"
                ) from error
            theirs.close()
            printed.close()
            worker = Worker(ranks, process, messages, output, last_words)
            self.workers.append(worker)
            self.sources[process.sentinel] = partial(self._see_the_end, worker)
            self.sources[messages] = partial(self._receive, worker)
            self.sources[output] = partial(self._read, worker)

    def _listen(self, time_limit: float) -> None:
        end = time.monotonic() + time_limit
        try:
            while len(self.done) < self.run.ranks:
                if self.failures:
                    raise self._failed()
                now = time.monotonic()
                if now >= end:
                    self._drain()
                    stacks = self.whereabouts.of(range(self.run.ranks))
                    raise too_late(self.run, time_limit, self.done, stacks)
                notice = self.whereabouts.notice(now, self.done, end)
                text = "\n".join(filter(None, [*self.output.unfinished(), notice]))
                pause = min(POLL_SECONDS, self.status.show(text))
                if self.live is not None:
                    pause = min(pause, self.live.tick())  # draws, if a frame is due
                self._poll(min(end - now, pause))
        finally:
            self.status.clear()

    # What comes from the ranks.

    def _poll(self, timeout: float) -> None:
        """Take what arrives within `timeout` seconds."""
        for source in wait(self.sources, timeout):
            if source in self.sources:  # else closed by what came before it
                self.sources[source]()

    def _drain(self) -> None:
        """Take what is there."""
        for _ in range(4):  # what pipes hold, not more, since a rank may print for ever
            self._poll(0.0)

    def _receive(self, worker: Worker) -> None:
        try:
            rank, message = worker.messages.recv()
        except (EOFError, OSError):
            del self.sources[worker.messages]
            return
        if not isinstance(message, At):
            self.whereabouts.last_message = time.monotonic()
        match message:
            case At(frames, cpu_seconds):
                self.whereabouts.note(rank, frames, cpu_seconds)
            case Metrics(records):
                self.run.metrics += records
                if self.live is not None:
                    for record in records:
                        self.live.add(record)
            case Printed(data):
                self.output.add(rank, data)
            case Spans(spans):
                # Events of two streams may come out a microsecond apart the wrong way round.
                self.spans += [
                    Span(rank, name, start, max(start, end), lane)
                    for name, start, end, lane in spans
                ]
            case Returned():
                self._open(worker, rank, message)
            case Failure():
                self.failures[rank] = message

    def _open(self, worker: Worker, rank: int, message: Returned) -> None:
        """Take a result."""
        try:
            file = None
            if message.parcel.data is None:
                file = File(reduction.recv_handle(worker.messages))
            self.run.results[rank] = unpack(message.parcel, file, access=mmap.ACCESS_WRITE)
        except Exception as error:  # opening it runs code of its classes
            happened = (
                f"returned a {message.kind}, which cannot be opened in the notebook: "
                f"{type(error).__name__}: {error}"
            )
            formatted = "".join(traceback.format_exception(error))
            self.failures[rank] = Failure(0.0, "Result", happened, message.frames, formatted)
        else:
            self.done.add(rank)
            self.alone += message.alone

    def _read(self, worker: Worker) -> None:
        self.whereabouts.last_message = time.monotonic()
        data = os.read(worker.output.fileno(), 1 << 16)
        if data:
            self.output.add(worker.ranks[0] if len(worker.ranks) == 1 else None, data)
        else:
            del self.sources[worker.output]

    def _see_the_end(self, worker: Worker) -> None:
        """A process has ended, maybe before its ranks had said how."""
        del self.sources[worker.process.sentinel]
        worker.process.join(1)
        while worker.messages in self.sources and worker.messages.poll():
            self._receive(worker)
        if self._heard_of(worker):
            return

        while worker.output in self.sources and worker.output.poll():
            self._read(worker)
        exitcode = worker.process.exitcode
        assert exitcode is not None, "its sentinel said that it has ended"
        rank = worker.ranks[0] if len(worker.ranks) == 1 else None
        stack = os.pread(worker.last_words.descriptor, 1 << 20, 0).decode(errors="replace")
        self.failures[rank] = died(exitcode, stack, self.output.text(rank))

    def _heard_of(self, worker: Worker) -> bool:
        """Whether all ranks in it have said how they ended."""
        return (self.done | self.failures.keys()).issuperset(worker.ranks)

    def _failed(self) -> RankError:
        end = time.monotonic() + SETTLE_SECONDS
        while not all(map(self._heard_of, self.workers)) and time.monotonic() < end:
            self._poll(max(0.0, end - time.monotonic()))
        first, failure = min(self.failures.items(), key=lambda item: item[1].time)
        stacks: Stacks = {}
        dead: dict[int, Failure] = {}
        if not failure.traceback:
            left = set(range(self.run.ranks)) - self.done - self.failures.keys()
            stacks = self.whereabouts.of(left)
            for rank, other in self.failures.items():
                if rank in (None, first):
                    continue
                if other.traceback:  # a peer that lost the connection: its error says where
                    stacks[rank] = other.frames[::-1]
                else:
                    dead[rank] = other
        return failed(self.run, first, failure, stacks, dead)

    # The end.

    def _interrupt(self) -> None:
        """Interrupt the ranks, too, whose `except KeyboardInterrupt` and `finally` then run.

        Virtual cores are threads, which cannot be interrupted.
        """
        interrupted = []
        for worker in self.workers:
            self.sources.pop(worker.messages, None)
            worker.messages.close()
            pid = worker.process.pid
            if len(worker.ranks) == 1 and pid and _signal_group(worker, 0):
                os.kill(pid, signal.SIGINT)  # not its children, which it ends itself
                interrupted.append(worker.process)
        end = time.monotonic() + INTERRUPT_SECONDS
        while any(one.is_alive() for one in interrupted) and time.monotonic() < end:
            self._poll(max(0.0, end - time.monotonic()))

    def end(self) -> None:
        """End every process, ranks' children included, and close everything; once is enough."""
        for worker in self.workers:
            worker.messages.close()  # who has returned or raised then ends by itself
        strays: list[psutil.Process] = []
        if len(self.done) < self.run.ranks:
            strays = self._strays()
        self._join([*filter(self._heard_of, self.workers)], END_SECONDS)
        ends = ((signal.SIGTERM, TERMINATE_SECONDS), (signal.SIGKILL, KILL_SECONDS))
        for number, seconds in ends:
            groups = [worker for worker in self.workers if _signal_group(worker, number)]
            if not groups:
                break
            self._join(groups, seconds)
        for process in strays:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for worker in self.workers:
            for _ in range(64):  # what a pipe holds
                if worker.output in self.sources and worker.output.poll():
                    self._read(worker)
            worker.output.close()
        self.workers = []
        self.sources = {}

    def _join(self, workers: list[Worker], seconds: float) -> None:
        """Wait for the end of these processes and, if they end, of all in their groups."""
        end = time.monotonic() + seconds
        for worker in workers:
            worker.process.join(max(0.0, end - time.monotonic()))
        groups = [
            worker.process.pid
            for worker in workers
            if not worker.process.is_alive() and _signal_group(worker, 0)
        ]
        while groups and (left := _members(groups)):
            late = time.monotonic() - end
            if late > (CLEANUP_SECONDS if any(map(_removes_files, left)) else 0.0):
                break
            time.sleep(0.02)

    def _strays(self) -> list[psutil.Process]:
        """What the ranks have started outside of their own groups."""
        strays: list[psutil.Process] = []
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(worker.process.pid).children(recursive=True)
                strays += [one for one in children if _group_of(one.pid) != worker.process.pid]
        return strays

    def _finish(self, seconds: float) -> None:
        """Complete the run and its plot."""
        self.run.seconds = seconds
        self.run.timeline = Timeline(self.spans)
        self.run.output = self.output.texts(self.run.ranks)
        if self.output.show and 1 < self.run.ranks == self.alone:
            print(ALONE.format(self.run.ranks))
        self.run.metrics.sort(key=lambda record: record["time"])
        if self.live is not None:
            self.live.close()


def _signal_group(worker: Worker, number: int) -> bool:
    """Send a signal to all in the process's group, 0 only to ask; whether anybody is there."""
    group = worker.process.pid
    assert group, "0 would be the notebook's own group"
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # no group yet, or nobody left in it
        if worker.process.is_alive() and number:
            worker.process.kill()
        return worker.process.is_alive()
    return True


def _members(groups: list[int | None]) -> list[psutil.Process]:
    """Who is left in these groups, but for those that have ended and were not waited for."""
    return [
        process
        for process in psutil.process_iter()
        if _group_of(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE
    ]


def _removes_files(process: psutil.Process) -> bool:
    """Whether it is a resource tracker, of `multiprocessing` or of joblib."""
    with contextlib.suppress(psutil.Error):
        return "resource_tracker" in " ".join(process.cmdline())
    return False


def _group_of(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back KeyboardInterrupt while processes are started or ended, then let it through."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught and sys.exc_info()[0] is None:
            signal.raise_signal(signal.SIGINT)
