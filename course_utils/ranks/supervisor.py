"""One launch, seen from the notebook: start its processes, hear them, leave nothing behind."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from multiprocessing import reduction
from multiprocessing.connection import wait
from typing import Any

from ..errors import RankError
from ..pictures.live import LivePlot
from ..timeline import Span, Timeline
from .failures import died, in_full, raised_by
from .files import File
from .left_out import LeftOut
from .output import Output, Status
from .processes import Worker, end_all, forked, interrupt
from .run import Run
from .server import HEAR_SECONDS, in_time, warm_up
from .values import unpack
from .whereabouts import Whereabouts
from .wire import (
    At,
    Failure,
    Interrupted,
    Metrics,
    Printed,
    Returned,
    Spans,
    Task,
    WithoutThese,
)
from .words import ALONE, RanksAt, failed, too_late

INTERRUPT_SECONDS = 2.0  # in which a rank may end after an interrupt, as a script after Ctrl+C
POLL_SECONDS = 1.0  # at most that the supervisor listens before it looks at its limits
SETTLE_SECONDS = 0.1  # in which other ranks may be heard before the first cause is named


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
        self.over = False  # no more processes are to be started
        self.starting = threading.Lock()
        self.output = Output(run.unit, show=show)
        self.status = Status()
        self.workers: list[Worker] = []
        self.sources: dict[Any, Callable[[], None]] = {}  # what is waited for: who takes it
        self.done: set[int] = set()
        self.interrupted: set[int] = set()  # ranks that have heard of it
        self.trained = 0  # ranks
        self.sent = False  # anything from one rank to another
        self.failures: dict[int | None, Failure] = {}  # by rank; None: cores that share a process
        self.whereabouts = Whereabouts(run)
        self.spans: list[Span] = []

    def supervise(self, task: Task, file: File | None, time_limit: float | None) -> Run:
        """Start all ranks, listen until all have returned or one failed, leave nothing behind.

        Args:
            file: that of the task's parcel.
        """
        limit = inf if time_limit is None else time_limit
        if self.live is not None:
            self.live.open(self.run.unit)
        # Called before multiprocessing's own exit handler, which would wait for the ranks.
        atexit.register(self.end)
        try:
            with uninterrupted() as interrupts:  # else it might leave a process nobody knows of
                end = self._start(pickle.dumps((self.main, task)), file, limit, interrupts)
            del file  # its memory is the ranks' from now on
            self._listen(end, limit)
            self._drain()
        except KeyboardInterrupt:
            with uninterrupted():
                self._interrupt()
            raise
        finally:
            with uninterrupted():
                self.end()
            atexit.unregister(self.end)
            self._finish(time.perf_counter() - task.started)
        return self.run

    def _start(self, job: bytes, file: File | None, limit: float, interrupts: list[float]) -> float:
        """Start every process; when the time limit ends, by `time.monotonic()`."""

        def fork_all() -> None:
            warm_up()
            for ranks in self.processes:
                worker = forked(ranks, job, file)
                with self.starting:
                    if self.over:
                        worker.process.kill()
                        return
                    self.workers.append(worker)

        end = in_time(fork_all, limit, interrupts)
        for worker in self.workers:
            self.sources[worker.process.sentinel] = partial(self._see_the_end, worker)
            self.sources[worker.messages] = partial(self._receive, worker)
            self.sources[worker.output] = partial(self._read, worker)
        return end

    def _listen(self, end: float, limit: float) -> None:
        try:
            while len(self.done) < self.run.ranks:
                if self.failures:
                    raise self._failed()
                now = time.monotonic()
                if now >= end:
                    self._drain()
                    groups = self.whereabouts.groups({*range(self.run.ranks)} - self.done)
                    raise too_late(self.run, limit, groups, self.done)
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
            case WithoutThese(lines):
                LeftOut(lines).tell()  # once, since ranks say the same
            case Interrupted():
                self.interrupted.add(rank)
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
                self.whereabouts.note(rank, message.frames[::-1], 0.0)

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
                f"{in_full(error)}"
            )
            failure = raised_by(error)
            self.failures[rank] = failure._replace(happened=happened, frames=message.frames)
        else:
            self.done.add(rank)
            self.trained += message.trained
            self.sent |= message.sent

    def _read(self, worker: Worker) -> None:
        self.whereabouts.last_message = time.monotonic()
        data = os.read(worker.output.fileno(), 1 << 16)
        if data:
            self.output.add(worker.rank, data)
        else:
            del self.sources[worker.output]

    def _read_rest(self, worker: Worker) -> None:
        for _ in range(64):  # what a pipe holds, not more, since a child may print for ever
            if worker.output in self.sources and worker.output.poll():
                self._read(worker)

    def _see_the_end(self, worker: Worker) -> None:
        """A process has ended, maybe before its ranks had said how."""
        del self.sources[worker.process.sentinel]
        worker.process.join(1)
        while worker.messages in self.sources and worker.messages.poll():
            self._receive(worker)
        if self._heard_of(worker):
            return

        self._read_rest(worker)
        exitcode = worker.process.exitcode
        assert exitcode is not None, "its sentinel said that it has ended"
        stack = os.pread(worker.last_words.descriptor, 1 << 20, 0).decode(errors="replace")
        printed = self.output.text(worker.rank)
        self.failures[worker.rank] = died(exitcode, stack, printed)

    def _heard_of(self, worker: Worker) -> bool:
        """Whether all ranks in it have said how they ended."""
        return (self.done | self.failures.keys()).issuperset(worker.ranks)

    def _failed(self) -> RankError:
        end = time.monotonic() + SETTLE_SECONDS
        while not all(map(self._heard_of, self.workers)) and time.monotonic() < end:
            self._poll(max(0.0, end - time.monotonic()))
        first, failure = min(self.failures.items(), key=lambda item: item[1].time)
        groups: list[RanksAt] = []
        if not failure.traceback:  # it has died, perhaps of what the others did
            dead = {rank for rank, other in self.failures.items() if not other.traceback}
            groups = self.whereabouts.groups({*range(self.run.ranks)} - self.done - dead)
        return failed(self.run, first, failure, groups)

    # The end.

    def _interrupt(self) -> None:
        """Interrupt the ranks, too, whose `except KeyboardInterrupt` and `finally` then run.

        One that waits for others does not hear of it. Virtual cores are threads, which cannot be
        interrupted.
        """
        waited_for = [worker for worker in self.workers if worker.rank is not None]
        for worker in waited_for:
            interrupt(worker)
        end = time.monotonic() + INTERRUPT_SECONDS
        until = time.monotonic() + HEAR_SECONDS
        while waited_for and time.monotonic() < min(end, until):
            self._poll(HEAR_SECONDS / 4)
            for worker in filter(self._heard_of, waited_for):
                self.sources.pop(worker.messages, None)
                worker.messages.close()  # it ends
            waited_for = [worker for worker in waited_for if not self._heard_of(worker)]
            if any(map(self._hears, waited_for)):  # its end may free those who wait for it
                until = time.monotonic() + HEAR_SECONDS

    def _hears(self, worker: Worker) -> bool:
        """Whether an interrupt has reached this rank, or will."""
        return worker.rank in self.interrupted or not self.whereabouts.waits(worker.rank)

    def end(self) -> None:
        """End every process, ranks' children included, and close everything; once is enough."""
        with self.starting:
            self.over = True
        for worker in self.workers:
            worker.messages.close()  # who has returned or raised then ends by itself
        end_all(self.workers, finishing=[*filter(self._heard_of, self.workers)])
        for worker in self.workers:
            self._read_rest(worker)
            worker.output.close()
        self.workers = []
        self.sources = {}

    def _finish(self, seconds: float) -> None:
        """Complete the run and its plot."""
        self.run.seconds = seconds
        self.run.timeline = Timeline(self.spans, ranks=range(self.run.ranks))
        self.run.output = self.output.texts(self.run.ranks)
        alone = self.trained > 1 and not self.sent and len(self.done) == self.run.ranks
        if alone and self.output.show:
            print(ALONE.format(self.run.ranks))
        self.run.metrics.sort(key=lambda record: record["time"])
        if self.live is not None:
            self.live.close()


@contextlib.contextmanager
def uninterrupted() -> Iterator[list[float]]:
    """Hold back KeyboardInterrupt while processes are started or ended, then let it through; when
    there was one, by `time.monotonic()`, is in the list.
    """
    caught: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = signal.signal(signal.SIGINT, lambda *_: caught.append(time.monotonic()))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)
        if caught and sys.exc_info()[0] is None:
            signal.raise_signal(signal.SIGINT)
