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
import weakref
from collections.abc import Iterator
from functools import partial
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from ..errors import CourseError, RankError, in_words
from ..pictures import board
from ..pictures.live import LivePlot
from ..timeline import Span, Timeline
from . import failures
from . import rank as inside
from .failures import Failure
from .report import Task
from .run import Output, Run
from .server import fork, warm_up
from .whereabouts import Whereabouts

GRACE = 0.5  # seconds between asking a process to end and ending it
TICK = 1.0  # seconds between looks at ranks that say nothing
NEWS = 0.1  # seconds in which the other ranks' news may arrive before the first cause is named
PIPE_READS = 32  # of 64 KiB each: a pipe holds one, unless it was told to hold more

_running: weakref.WeakSet[Crew] = weakref.WeakSet()


class Member(NamedTuple):
    """One process of a launch, and what comes from it."""

    ranks: list[int]  # that it is: one, or on a TPU's virtual cores all of them
    process: BaseProcess
    messages: Connection
    output: Connection  # what it prints


class Crew:
    """All ranks of one launch.

    Args:
        run: filled with what they send.
        live: the plot that draws what they report.
        show: print what they print, each line with its rank.
    """

    main = staticmethod(inside.main)  # what each process runs

    def __init__(self, run: Run, *, live: LivePlot | None, show: bool) -> None:
        self.run, self.live, self.output = run, live, Output(run.unit, show=show)
        self.members: list[Member] = []
        self.sources: dict[Any, tuple[Any, Member]] = {}  # what may have news: how to take them, whose they are
        self.done: set[int] = set()
        self.failures: list[Failure] = []
        self.heard = time.monotonic()  # when the last news came
        self.whereabouts = Whereabouts(run)
        self.spans: list[Span] = []

    def groups(self) -> list[list[int]]:
        """The ranks of each process."""
        return [[rank] for rank in range(self.run.ranks)]

    def work(self, task: Task, time_limit: float | None) -> Run:
        """Start all ranks, hear them until all have returned or one failed, and leave nothing behind."""
        if self.live is not None:
            self.live.open(self.run.unit)
        _running.add(self)
        try:
            self._start(pickle.dumps(task))
            self._listen(inf if time_limit is None else time_limit)
            self._release()
        except KeyboardInterrupt as error:
            said = f"interrupted; every {self.run.unit} was ended."
            error._render_traceback_ = partial(in_words, error, said)  # IPython's hook; scripts see the usual one
            raise
        finally:
            with uninterrupted():
                self.end()
            _running.discard(self)
            self._finish(time.perf_counter() - task.began)
        self._note()
        return self.run

    def _start(self, task: bytes) -> None:
        warm_up()
        with uninterrupted():  # else an interrupt might leave a process that nobody knows of
            for ranks in self.groups():
                messages, theirs = mp.Pipe()
                output, printed = mp.Pipe(duplex=False)
                try:
                    process = fork(self.main, ranks, theirs, printed, task)
                except (EOFError, OSError) as error:
                    raise CourseError(
                        f"no rank could be forked ({error!r}): the server that ranks are forked from ended, perhaps "
                        "while it imported torch; `python -m course_utils.ranks.preload` in a terminal shows why"
                    ) from error
                theirs.close()
                printed.close()
                member = Member(ranks, process, messages, output)
                self.members.append(member)
                self.sources[process.sentinel] = self._died, member
                self.sources[messages] = self._receive, member
                self.sources[output] = self._read, member

    def _listen(self, time_limit: float) -> None:
        end = time.monotonic() + time_limit
        try:
            while len(self.done) < self.run.ranks:
                if self.failures:
                    raise self._failed()
                if (left := end - time.monotonic()) <= 0:
                    self._drain()
                    stacks = self.whereabouts.of(range(self.run.ranks))
                    raise failures.too_late(self.run, time_limit, self.done, stacks)
                self.whereabouts.tell(self.heard, self.done, end)
                self._hear(min(left, TICK if self.live is None else self.live.tick()))
        finally:
            self.whereabouts.clear()

    # What comes from the ranks.

    def _hear(self, timeout: float) -> bool:
        """Take what arrives within `timeout` seconds; whether there was anything."""
        ready = wait(self.sources, timeout)
        for source in ready:
            if source in self.sources:  # else closed by what came before it
                take, member = self.sources[source]
                take(member)
        return bool(ready)

    def _drain(self) -> None:
        """Take what is there: what pipes hold, not more, since a rank may print for ever."""
        for _ in range(PIPE_READS):
            if not self._hear(0.0):
                break

    def _receive(self, member: Member) -> None:
        try:
            rank, kind, *values = member.messages.recv()
        except (EOFError, OSError):
            del self.sources[member.messages]
            return
        if kind == "at":
            self.whereabouts.hear(rank, *values)
            return
        self.heard = time.monotonic()
        if kind == "metrics":
            self.run.metrics += values[0]
            for record in values[0] if self.live is not None else ():
                self.live.add(record)
        elif kind == "output":
            self.output.add(rank, values[0])
        elif kind == "spans":
            # Events of two streams may come out a microsecond apart the wrong way round.
            self.spans += [Span(rank, name, start, max(start, end), lane) for name, start, end, lane in values[0]]
        elif kind == "result":
            self.run.results[rank] = pickle.loads(values[0])
            self.done.add(rank)
        elif kind == "error":
            at, name, message, frames, traceback = values
            said = f" raised {name}" + (f": {message}" if message else "")
            if name == "SystemExit":
                said = f" called sys.exit({message}) before its function returned"
            self.failures.append(Failure(at, rank, name, self.who(rank) + said, frames, traceback))

    def _read(self, member: Member) -> None:
        self.heard = time.monotonic()
        if data := os.read(member.output.fileno(), 1 << 16):
            self.heard_output(member, data)
        else:
            del self.sources[member.output]

    def heard_output(self, member: Member, data: bytes) -> None:
        """What a process printed."""
        self.output.add(member.ranks[0], data)

    def _died(self, member: Member) -> None:
        del self.sources[member.process.sentinel]
        member.process.join(1)
        while member.messages in self.sources and member.messages.poll():
            self._receive(member)
        if not self.done.union(failure.rank for failure in self.failures).issuperset(member.ranks):
            alone = member.ranks[0] if len(member.ranks) == 1 else None  # else no one of them is to blame
            self.failures.append(Failure(0.0, alone, *self.death(member), [], ""))

    # What is said of them.

    def who(self, rank: int) -> str:
        return f"{self.run.unit} {rank} of {self.run.ranks}"

    def death(self, member: Member) -> tuple[str, str]:
        """(cause, sentence) for a process that ended by itself."""
        count = len(member.ranks)
        who = self.who(member.ranks[0]) if count == 1 else f"the process of the {count} {self.run.unit}s"
        return failures.died(who, member.process.exitcode)

    def _failed(self) -> RankError:
        end = time.monotonic() + NEWS
        while (left := end - time.monotonic()) > 0:
            self._hear(left)
        first = min(self.failures, key=lambda failure: failure.time)
        if first.traceback:
            return failures.failed(self.run, first, {})
        stacks = self.whereabouts.of(set(range(self.run.ranks)) - self.done - {first.rank})
        # Peers that lost the connection have left the place where they were; their errors remember it.
        stacks |= {failure.rank: failure.frames[::-1] for failure in self.failures if failure.traceback}
        return failures.failed(self.run, first, stacks)

    # The end.

    def _release(self) -> None:
        for member in self.members:
            with contextlib.suppress(OSError):
                member.messages.send("leave")
        self._join()
        self._drain()

    def _join(self) -> None:
        end = time.monotonic() + GRACE
        for member in self.members:
            member.process.join(max(0, end - time.monotonic()))

    def end(self) -> None:
        """End every process, the ranks' own children included, and close everything. Idempotent."""
        for member in self.members:
            member.messages.close()
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
        """Complete the run and what is shown of it."""
        self.run.seconds, self.run.timeline = seconds, Timeline(self.spans)
        self.run.output = self.output.texts(self.run.ranks)
        self.run.metrics.sort(key=lambda record: record["time"])
        if self.live is not None:
            self.live.close()

    def _note(self) -> None:
        """What the first rank that reported measured, for the reader's board."""
        run, title = self.run, getattr(self.live, "title", "")  # a plot may be anyone's that can open, add, tick, close
        lasts: dict[str, float] = {}
        for record in run.metrics:
            if record["rank"] == run.metrics[0]["rank"]:
                lasts |= record
        lasts = {name: value for name, value in lasts.items() if name not in ("rank", "time", "step")}
        board.note(run.name, lasts, title=title, on=f"{run.units}, {run.device}", seconds=run.seconds)


def running() -> bool:
    """Whether a launch is under way in this process."""
    return bool(_running)


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


@atexit.register  # runs before multiprocessing's own exit handler, which would wait for the ranks
def _end_all() -> None:
    for crew in list(_running):
        crew.end()
