"""The processes of one launch, seen from the notebook: start them, hear them, say what failed,
leave nothing behind.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from ..errors import CourseError, RankError, in_words
from ..pictures.live import LivePlot
from ..timeline import Span, Timeline
from .failures import Failure, Stacks, Whereabouts, died, failed, raised, too_late
from .rank import main as rank_main
from .run import Output, Run
from .server import fork, warm_up
from .wire import Task

GRACE = 0.5  # seconds between asking a process to end and killing it
TICK = 1.0  # seconds at most that the supervisor listens before it looks at its limits
NEWS = 0.1  # seconds in which the other ranks' news may arrive before the first cause is named


class Worker(NamedTuple):
    """One process of a launch, and what comes from it."""

    ranks: list[int]  # those in it: one, or all of a TPU's virtual cores
    process: BaseProcess
    messages: Connection
    output: Connection  # what it prints


class Supervisor:
    """All ranks of one launch: what they send fills `run`, what they report is drawn by `live`."""

    main = staticmethod(rank_main)  # what each process runs
    together = False  # whether all ranks share one process

    def __init__(self, run: Run, *, live: LivePlot | None, show: bool) -> None:
        self.run, self.live = run, live
        self.output = Output(run.unit, show=show)
        self.workers: list[Worker] = []
        self.sources: dict[Any, Callable[[], None]] = {}  # where news come from: who takes them
        self.done: set[int] = set()
        self.failures: list[Failure] = []
        self.heard = time.monotonic()  # when the last news came
        self.whereabouts = Whereabouts(run)
        self.spans: list[Span] = []

    def supervise(self, task: Task, time_limit: float | None) -> Run:
        """Start all ranks, listen until all have returned or one failed, leave nothing behind."""
        if self.live is not None:
            self.live.open(self.run.unit)
        # Called before multiprocessing's own exit handler, which would wait for the ranks.
        atexit.register(self.end)
        try:
            with uninterrupted():  # else an interrupt might leave a process that nobody knows of
                self._start(pickle.dumps(task))
            self._listen(inf if time_limit is None else time_limit)
            self._drain()
        except KeyboardInterrupt as error:
            # IPython's hook; scripts see the usual traceback.
            words = f"interrupted; every {self.run.unit} was ended."
            error._render_traceback_ = partial(in_words, error, words)  # ty: ignore
            raise
        finally:
            with uninterrupted():
                self.end()
            atexit.unregister(self.end)
            self._finish(time.perf_counter() - task.began)
        return self.run

    def _start(self, task: bytes) -> None:
        warm_up()
        everyone = list(range(self.run.ranks))
        groups = [everyone] if self.together else [[rank] for rank in everyone]  # of each process
        for ranks in groups:
            messages, theirs = mp.Pipe()
            output, printed = mp.Pipe(duplex=False)
            try:
                process = fork(self.main, ranks, theirs, printed, task)
            except (EOFError, OSError) as error:
                raise CourseError(
                    f"no rank could be forked ({error!r}): the server that ranks are forked from "
                    "ended; `python -m course_utils.ranks.preload` in a terminal may show why"
                ) from error
            theirs.close()
            printed.close()
            worker = Worker(ranks, process, messages, output)
            self.workers.append(worker)
            self.sources[process.sentinel] = partial(self._died, worker)
            self.sources[messages] = partial(self._receive, worker)
            self.sources[output] = partial(self._read, worker)

    def _listen(self, time_limit: float) -> None:
        end = time.monotonic() + time_limit
        try:
            while len(self.done) < self.run.ranks:
                if self.failures:
                    raise self._failed()
                left = end - time.monotonic()
                if left <= 0:
                    self._drain()
                    stacks = self.whereabouts.of(range(self.run.ranks))
                    raise too_late(self.run, time_limit, self.done, stacks)
                self.whereabouts.tell(self.heard, self.done, end)
                pause = TICK
                if self.live is not None:
                    pause = self.live.tick()  # draws, if a frame is due
                self._hear(min(left, pause))
        finally:
            self.whereabouts.show("")

    # What comes from the ranks.

    def _hear(self, timeout: float) -> None:
        """Take what arrives within `timeout` seconds."""
        for source in wait(self.sources, timeout):
            if source in self.sources:  # else closed by what came before it
                self.sources[source]()

    def _drain(self) -> None:
        """Take what is there."""
        for _ in range(4):  # what pipes hold, not more, since a rank may print for ever
            self._hear(0.0)

    def _receive(self, worker: Worker) -> None:
        try:
            rank, kind, *values = worker.messages.recv()
        except (EOFError, OSError):
            del self.sources[worker.messages]
            return
        if kind == "at":
            self.whereabouts.hear(rank, *values)
            return

        self.heard = time.monotonic()
        if kind == "metrics":
            self.run.metrics += values[0]
            if self.live is not None:
                for record in values[0]:
                    self.live.add(record)
        elif kind == "output":
            self.output.add(rank, values[0])
        elif kind == "spans":
            # Events of two streams may come out a microsecond apart the wrong way round.
            self.spans += [
                Span(rank, name, start, max(start, end), lane)
                for name, start, end, lane in values[0]
            ]
        elif kind == "result":
            self.run.results[rank] = pickle.loads(values[0])
            self.done.add(rank)
        elif kind == "error":
            at, name, message, frames, traceback = values
            if name == "SystemExit":
                said = f"called sys.exit({message}) before its function returned"
            else:
                said = raised(name, message)
            failure = Failure(at, rank, name, f"{self.who(rank)} {said}", frames, traceback)
            self.failures.append(failure)

    def _read(self, worker: Worker) -> None:
        self.heard = time.monotonic()
        data = os.read(worker.output.fileno(), 1 << 16)
        if data:
            self.output.add(None if self.together else worker.ranks[0], data)
        else:
            del self.sources[worker.output]

    def _died(self, worker: Worker) -> None:
        del self.sources[worker.process.sentinel]
        worker.process.join(1)
        while worker.messages in self.sources and worker.messages.poll():
            self._receive(worker)
        heard_of = self.done | {failure.rank for failure in self.failures}
        if heard_of.issuperset(worker.ranks):
            return

        if len(worker.ranks) == 1:
            [rank] = worker.ranks
            who = self.who(rank)
        else:
            rank = None
            who = f"the process of the {self.run.units}"
        exitcode = worker.process.exitcode
        assert exitcode is not None, "its sentinel said that it has ended"
        cause, said = died(who, exitcode)
        self.failures.append(Failure(0.0, rank, cause, said, [], ""))

    # What is said of them.

    def who(self, rank: int) -> str:
        return f"{self.run.unit} {rank} of {self.run.ranks}"

    def _failed(self) -> RankError:
        end = time.monotonic() + NEWS
        while (left := end - time.monotonic()) > 0:
            self._hear(left)
        first = min(self.failures, key=lambda failure: failure.time)
        stacks: Stacks = {}
        if not first.traceback:
            stacks = self.whereabouts.of(set(range(self.run.ranks)) - self.done - {first.rank})
            # Peers that lost the connection are no longer where they waited; their errors say it.
            for failure in self.failures:
                if failure.traceback and failure.rank is not None:
                    stacks[failure.rank] = failure.frames[::-1]
        return failed(self.run, first, stacks)

    # The end.

    def _join(self) -> None:
        end = time.monotonic() + GRACE
        for worker in self.workers:
            worker.process.join(max(0.0, end - time.monotonic()))

    def end(self) -> None:
        """End every process, ranks' children included, and close everything; once is enough."""
        for worker in self.workers:
            worker.messages.close()  # who has returned then ends by itself
        if len(self.done) == self.run.ranks:
            self._join()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker in self.workers:
                group = worker.process.pid
                assert group, "0 would be the notebook's own group"
                try:
                    os.killpg(group, number)
                except (ProcessLookupError, PermissionError):  # no group yet, or nobody left in it
                    if worker.process.is_alive():
                        worker.process.kill()
            self._join()
        for worker in self.workers:
            worker.output.close()
        self.workers = []
        self.sources = {}

    def _finish(self, seconds: float) -> None:
        """Complete the run and its plot."""
        self.run.seconds = seconds
        self.run.timeline = Timeline(self.spans)
        self.run.output = self.output.texts(self.run.ranks)
        self.run.metrics.sort(key=lambda record: record["time"])
        if self.live is not None:
            self.live.close()


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
