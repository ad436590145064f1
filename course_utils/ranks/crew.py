"""The processes of one launch, seen from the notebook: start them, hear them, say what failed, leave nothing behind."""

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
from ..pictures import board
from ..pictures.live import LivePlot
from ..timeline import Span, Timeline
from . import rank as inside
from .failures import Failure, Whereabouts, died, failed, too_late
from .report import Task
from .run import Output, Run
from .server import fork, warm_up

GRACE = 0.5  # seconds between asking a process to end and ending it
TICK = 1.0  # seconds between looks at ranks that say nothing
NEWS = 0.1  # seconds in which the other ranks' news may arrive before the first cause is named


class Member(NamedTuple):
    """One process of a launch, and what comes from it."""

    ranks: list[int]  # that it is: one, or on a TPU's virtual cores all of them
    process: BaseProcess
    messages: Connection
    output: Connection  # what it prints


class Crew:
    """All ranks of one launch: what they send fills `run`, what they report is drawn by `live`."""

    main = staticmethod(inside.main)  # what each process runs
    together = False  # all in one process

    def __init__(self, run: Run, *, live: LivePlot | None, show: bool) -> None:
        self.run, self.live, self.output = run, live, Output(run.unit, show=show)
        self.members: list[Member] = []
        self.sources: dict[Any, Callable[[], None]] = {}  # what may have news: how to take them
        self.done: set[int] = set()
        self.failures: list[Failure] = []
        self.heard = time.monotonic()  # when the last news came
        self.whereabouts = Whereabouts(run)
        self.spans: list[Span] = []

    def work(self, task: Task, time_limit: float | None) -> Run:
        """Start all ranks, hear them until all have returned or one failed, and leave nothing behind."""
        if self.live is not None:
            self.live.open(self.run.unit)
        atexit.register(
            self.end
        )  # called before multiprocessing's own exit handler, which would wait for the ranks
        try:
            with uninterrupted():  # else an interrupt might leave a process that nobody knows of
                self._start(pickle.dumps(task))
            self._listen(inf if time_limit is None else time_limit)
            self._drain()
        except KeyboardInterrupt as error:
            # IPython's hook; scripts see the usual traceback.
            error._render_traceback_ = partial(
                in_words, error, f"interrupted; every {self.run.unit} was ended."
            )
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
        for ranks in [everyone] if self.together else [[rank] for rank in everyone]:
            messages, theirs = mp.Pipe()
            output, printed = mp.Pipe(duplex=False)
            try:
                process = fork(self.main, ranks, theirs, printed, task)
            except (EOFError, OSError) as error:
                raise CourseError(
                    f"no rank could be forked ({error!r}): the server that ranks are forked from ended; "
                    "`python -m course_utils.ranks.preload` in a terminal may show why"
                ) from error
            theirs.close()
            printed.close()
            member = Member(ranks, process, messages, output)
            self.members.append(member)
            self.sources[process.sentinel] = partial(self._died, member)
            self.sources[messages] = partial(self._receive, member)
            self.sources[output] = partial(self._read, member)

    def _listen(self, time_limit: float) -> None:
        end = time.monotonic() + time_limit
        try:
            while len(self.done) < self.run.ranks:
                if self.failures:
                    raise self._failed()
                if (left := end - time.monotonic()) <= 0:
                    self._drain()
                    stacks = self.whereabouts.of(range(self.run.ranks))
                    raise too_late(self.run, time_limit, self.done, stacks)
                self.whereabouts.tell(self.heard, self.done, end)
                self._hear(min(left, TICK if self.live is None else self.live.tick()))
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

    def _receive(self, member: Member) -> None:
        try:
            rank, kind, *values = member.messages.recv()
        except (EOFError, OSError):
            del self.sources[member.messages]
            return
        if kind != "at":
            self.heard = time.monotonic()
        if kind == "at":
            self.whereabouts.hear(rank, *values)
        elif kind == "metrics":
            self.run.metrics += values[0]
            for record in values[0] if self.live is not None else ():
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
            said = f" raised {name}" + f": {message}" * bool(message)
            if name == "SystemExit":
                said = f" called sys.exit({message}) before its function returned"
            self.failures.append(Failure(at, rank, name, self.who(rank) + said, frames, traceback))

    def _read(self, member: Member) -> None:
        self.heard = time.monotonic()
        if data := os.read(member.output.fileno(), 1 << 16):
            self.output.add(None if self.together else member.ranks[0], data)
        else:
            del self.sources[member.output]

    def _died(self, member: Member) -> None:
        del self.sources[member.process.sentinel]
        member.process.join(1)
        while member.messages in self.sources and member.messages.poll():
            self._receive(member)
        if not self.done.union(failure.rank for failure in self.failures).issuperset(member.ranks):
            first, *others = member.ranks
            who = (
                f"the process of the {len(member.ranks)} {self.run.unit}s"
                if others
                else self.who(first)
            )
            cause, said = died(who, member.process.exitcode)
            self.failures.append(Failure(0.0, None if others else first, cause, said, [], ""))

    # What is said of them.

    def who(self, rank: int) -> str:
        return f"{self.run.unit} {rank} of {self.run.ranks}"

    def _failed(self) -> RankError:
        end = time.monotonic() + NEWS
        while (left := end - time.monotonic()) > 0:
            self._hear(left)
        first, stacks = min(self.failures, key=lambda failure: failure.time), {}
        if not first.traceback:
            stacks = self.whereabouts.of(set(range(self.run.ranks)) - self.done - {first.rank})
            # Peers that lost the connection have left the place where they were; their errors remember it.
            stacks |= {
                failure.rank: failure.frames[::-1] for failure in self.failures if failure.traceback
            }
        return failed(self.run, first, stacks)

    # The end.

    def _join(self) -> None:
        end = time.monotonic() + GRACE
        for member in self.members:
            member.process.join(max(0.0, end - time.monotonic()))

    def end(self) -> None:
        """End every process, the ranks' own children included, and close everything; a second time changes nothing."""
        for member in self.members:
            member.messages.close()  # who has returned then ends by itself
        if len(self.done) == self.run.ranks:
            self._join()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for member in self.members:
                try:
                    os.killpg(member.process.pid, number)
                except (ProcessLookupError, PermissionError):  # no group yet, or nobody left in it
                    if member.process.is_alive():
                        member.process.kill()
            self._join()
        for member in self.members:
            member.output.close()
        self.members, self.sources = [], {}

    def _finish(self, seconds: float) -> None:
        """Complete the run and its plot; what the first rank that reported measured goes to the reader's board."""
        run, lasts = self.run, {}
        run.seconds, run.timeline, run.output = (
            seconds,
            Timeline(self.spans),
            self.output.texts(run.ranks),
        )
        run.metrics.sort(key=lambda record: record["time"])
        if self.live is not None:
            self.live.close()
        for record in run.metrics if len(self.done) == run.ranks else ():
            if record["rank"] == run.metrics[0]["rank"]:
                lasts |= {
                    name: value
                    for name, value in record.items()
                    if name not in ("rank", "time", "step")
                }
        title, on = getattr(self.live, "title", ""), f"{run.units}, {run.device}"
        board.note(run.name, lasts, title=title, on=on, seconds=run.seconds)


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
