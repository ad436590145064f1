"""The process (on a TPU: the processes) of a TPU's cores, seen from the notebook."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import re
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

from ..ranks import failures
from ..ranks.processes import ANSWER, Ranks, frames
from ..ranks.server import fork
from . import core as inside

# XLA's CPU client waits 5 s for a late core, says so, and after 10 s ends the process.
RENDEZVOUS, STUCK, FATAL = b"rendezvous.cc", "may be stuck", "Fatal Python error"
LATE = re.compile(r"Expected (?P<expected>\d+) threads .* only (?P<arrived>\d+) of them arrived")
MOST_SAID = 1 << 16
THREAD = re.compile(r"^(?:Current thread|Thread) 0x(?P<thread>[0-9a-f]+)", re.MULTILINE)


class Cores(Ranks):
    """`count` cores, numbered from 0, in one process; `spmd`: one program that has them all."""

    def __init__(self, count: int, *, spmd: bool) -> None:
        super().__init__(count)
        self.spmd = spmd
        self._at: dict[int, tuple[int, int]] = {}  # core -> process, thread
        self._said = ""  # what XLA said last, in the shared output
        self._threads = ""  # where all were when XLA said that they may be stuck

    def who(self, rank: int) -> str:
        return "the SPMD program" if self.spmd else f"core {rank} of {self.count}"

    def death(self, rank: int, exitcode: int | None, *, out_of_memory: bool) -> tuple[str, str]:
        if late := LATE.search(self._said):
            expected, arrived = int(late["expected"]), int(late["arrived"])
            return "Stuck", (
                f"{arrived} of {expected} cores reached a collective, and XLA ended them all after waiting for the "
                "others: every core must run the same program, collectives included"
            )
        who = f"the process of the {self.count} cores" if self.count > 1 else self.who(rank)
        return failures.died(who, exitcode, out_of_memory=out_of_memory)

    def _start_all(self, failed: list[BaseException]) -> None:
        pairs = [mp.Pipe() for _ in range(self.count)]
        prints = [mp.Pipe(duplex=False) for _ in range(self.count + 1)]  # the last one: of the process as a whole
        theirs = [pair[1] for pair in pairs], [write for _, write in prints]
        try:
            process = fork(inside.main, theirs[0], theirs[1][:-1], theirs[1][-1], name="cores")
        except (EOFError, OSError) as error:
            failed.append(error)
            return
        finally:
            for connection in [*theirs[0], *theirs[1]]:
                connection.close()
        with self._lock:
            if self._ended:  # interrupted: the process finds its pipes closed and leaves
                for connection in [*(pair[0] for pair in pairs), *(read for read, _ in prints)]:
                    connection.close()
                return
            self.processes = [process]
            self.pipes = [pair[0] for pair in pairs]
            self.outputs = [read for read, _ in prints]
            self._alive = {process.sentinel: (process, list(range(self.count)))}
            self._open = {pipe: core for pipes in (self.pipes, self.outputs) for core, pipe in enumerate(pipes)}

    def _receive(self, pipe: Connection) -> Iterator[tuple[int, str, object]]:
        for core, kind, values in super()._receive(pipe):
            if kind == "at":
                self._at[core] = values
            else:
                yield core, kind, values

    def _read(self, output: Connection) -> Iterator[tuple[int, str, object]]:
        for core, kind, data in super()._read(output):
            if output is not self.outputs[-1]:
                yield core, kind, data
                continue
            self._said = (self._said + data.decode(errors="replace"))[-MOST_SAID:]
            if STUCK in self._said and not self._threads:  # when it ends them, several threads abort at once
                self._threads = self._ask({pid for pid, _ in self._at.values()})
            lines = [line for line in data.splitlines(keepends=True) if RENDEZVOUS not in line]
            if lines and FATAL not in self._said:  # from then on it is the list of threads
                yield core, kind, b"".join(lines)

    def where(self, ranks: list[int]) -> dict[int, list[tuple[str, int, str]]]:
        """Where the cores are, or were when their process crashed: it lists all its threads, into the shared output."""
        asked = {core: self._at[core] for core in ranks if core in self._at}
        if FATAL in self._said or not self._alive:
            text = (LATE.search(self._said) and self._threads) or self._said
        else:
            text = self._ask({pid for pid, _ in asked.values()})
        starts = [*THREAD.finditer(text)]
        ends = [*(start.start() for start in starts[1:]), len(text)]
        stacks = {
            int(start["thread"], 16): frames(text[start.end() : end])
            for start, end in zip(starts, ends, strict=False)
        }
        return {core: stacks[thread] for core, (_, thread) in asked.items() if thread in stacks}

    def _pid(self, rank: int) -> int:
        return self._at[rank][0] if rank in self._at else self.processes[0].pid

    def _ask(self, processes: set[int]) -> str:
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        shared, said, deadline = self.outputs[-1], b"", time.monotonic() + ANSWER
        while (left := deadline - time.monotonic()) > 0 and wait([shared], left):
            if not (data := os.read(shared.fileno(), 1 << 16)):
                break
            said += data
        return said.decode(errors="replace")
