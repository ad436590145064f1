"""What the ranks of one launch said so far, and whether that is the end: all returned, or one failed."""

from __future__ import annotations

import functools
import pickle
import re
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..timeline import Span, Timeline
from . import failures
from .processes import Ranks
from .run import Run

MOST_OUTPUT = 64 << 20  # bytes kept of what a rank prints
# What gloo prints in torch 2.8 and 2.9, on every rank, whenever a group is made.
GLOO = re.compile(rb"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks\..*\n", re.MULTILINE)
DRAIN = 0.1  # seconds in which the other ranks' news may arrive before the first cause is named


@dataclass
class Message:
    rank: int | None
    cause: str
    message: str
    traceback: str = ""
    advice: str = ""  # to whoever called launch


class Heard:
    """What the ranks said so far, and whether that is the end.

    Args:
        run: where it is kept.
        on_output, on_record: called with (rank, bytes printed) and with each record that `report` sent, as they come.
        tick: called between; returns the seconds after which it wants to be called again.
    """

    def __init__(
        self,
        run: Run,
        *,
        on_output: Callable[[int, bytes], None] | None = None,
        on_record: Callable[[dict], None] | None = None,
        tick: Callable[[], float] | None = None,
    ) -> None:
        self.run, self.on_output, self.on_record, self.tick = run, on_output, on_record, tick
        self.done: set[int] = set()
        self.errors: list[tuple] = []  # (time, rank, name, message, frames, traceback)
        self.deaths: list[tuple[int, int | None]] = []
        self.spans: list[Span] = []
        self.printed: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.half: dict[int, bytes] = {}  # the beginning of gloo's line

    def until_done(self, processes: Ranks, time_limit: float | None) -> Callable | None:
        """Listen until all ranks returned (None) or one failed (a function that says how)."""
        drain_until = None
        deadline = None if time_limit is None else time.perf_counter() + time_limit
        while len(self.done) < self.run.ranks:
            now = time.perf_counter()
            if (self.errors or self.deaths) and drain_until is None:
                drain_until = now + DRAIN
            if drain_until is not None and now >= drain_until:
                return self._death if self.deaths else self._error
            if deadline is not None and now >= deadline:
                return functools.partial(self._too_late, time_limit)
            waits = [end - now for end in (deadline, drain_until) if end is not None]
            if self.tick is not None:
                waits.append(self.tick())
            self.take(processes.hear(max(0.0, min(waits)) if waits else None))
        return None

    def take(self, news: Any) -> None:
        for rank, kind, value in news:
            if kind == "metrics":
                self.run.metrics += value[0]
                if self.on_record is not None:
                    for record in value[0]:
                        self.on_record(record)
            elif kind == "output":
                value = self._without_gloo(rank, value)
                self.printed[rank] += value[: max(0, MOST_OUTPUT - len(self.printed[rank]))]
                if self.on_output is not None:
                    self.on_output(rank, value)
            elif kind == "spans":
                # Events of two streams may come out a microsecond apart the wrong way round.
                self.spans += [Span(rank, name, start, max(start, end), lane) for name, start, end, lane in value[0]]
            elif kind == "result":
                self._result(rank, value[0])
            elif kind == "error":
                self.errors.append((value[0], rank, *value[1:]))
            elif kind == "died" and rank not in self.done and rank not in {error[1] for error in self.errors}:
                self.deaths.append((rank, value))

    def _without_gloo(self, rank: int, data: bytes) -> bytes:
        data = self.half.pop(rank, b"") + data
        end = data.rfind(b"\n") + 1
        if data[end:].startswith(b"[Gloo]"):  # the line comes in pieces
            self.half[rank], data = data[end:], data[:end]
        return GLOO.sub(b"", data)

    def _result(self, rank: int, payload: bytes) -> None:
        try:
            self.run.results[rank] = pickle.loads(payload)
        except Exception as error:
            message = f"the result cannot be rebuilt in the notebook: {error}"
            self.errors.append((time.perf_counter(), rank, type(error).__name__, message, [], ""))
        else:
            self.done.add(rank)

    def close(self, seconds: float) -> None:
        run = self.run
        run.seconds = seconds
        run.output = [bytes(self.printed[rank]).decode(errors="replace") for rank in range(run.ranks)]
        run.metrics.sort(key=lambda record: record["time"])
        run.timeline = Timeline(self.spans)

    def _unfinished(self, *but: int) -> list[int]:
        return [rank for rank in range(self.run.ranks) if rank not in self.done and rank not in but]

    def _error(self, processes: Ranks, out_of_memory: bool) -> Message:
        _, rank, name, message, frames, trace = min(self.errors, key=lambda error: error[0])
        return Message(rank, name, failures.raised(processes.who(rank), name, message, frames), trace)

    def _death(self, processes: Ranks, out_of_memory: bool) -> Message:
        rank, exitcode = self.deaths[0]
        cause, text = processes.death(rank, exitcode, out_of_memory=out_of_memory)
        dead = [rank] if self.run.unit == "rank" else []  # cores share a process: no one of them is to blame
        # Peers that lost the connection have left the place where they were; their errors remember it.
        stacks = {r: frames[::-1] for _, r, _, _, frames, _ in self.errors}
        self.take(processes.drain())
        stacks |= processes.where(self._unfinished(*dead, *stacks))
        others = failures.whereabouts(stacks, self.run.unit, processes.silent)
        message = "\n".join([text, *(f"meanwhile {line}" for line in others)])
        advice = "Its last words are in error.run.output." if cause == "SIGABRT" else ""
        return Message(rank if dead else None, cause, message, advice=advice)

    def _too_late(self, time_limit: float, processes: Ranks, out_of_memory: bool) -> Message:
        late = self._unfinished()
        self.take(processes.drain())
        found = processes.where(late)
        stacks = failures.whereabouts(found, self.run.unit, processes.silent)
        culprit = late[0] if len(late) == 1 else failures.keeps_waiting(found)
        who = f"{failures.listed(late, self.run.unit)} of {self.run.ranks}"
        text = [f"{who} had not finished after the time limit of {time_limit:g} s"]
        text += stacks
        if self.done:
            returned = failures.listed(sorted(self.done), self.run.unit)
            text.append(f"{returned} had returned: a collective needs every {self.run.unit}.")
        if culprit is not None and len(late) > 1:
            waiting = [rank for rank in late if rank != culprit]
            verb = "wait" if len(waiting) > 1 else "waits"
            text.append(f"{failures.listed(waiting, self.run.unit)} {verb} for {self.run.unit} {culprit}.")
        advice = "If the work is only slow, pass a larger time_limit (seconds), or None."
        return Message(culprit, "TimeLimit", "\n".join(text), "\n".join(stacks), advice)
