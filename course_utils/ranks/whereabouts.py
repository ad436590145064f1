"""Where ranks are, what they do there, and whether they hang."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable
from typing import NamedTuple

from ..errors import Frame, cell_name, location, own_frames
from . import program
from .run import Run
from .words import (
    ENDING,
    RETURNED,
    RUNNING,
    SILENT,
    STARTING,
    STOPPED,
    Activity,
    RanksAt,
    silent,
)

QUIET_SECONDS = 10.0  # without a message, until the cell says where ranks wait
STOPPED_SECONDS = 5.0  # without a word of where a rank is: stopped, or in C with Python's lock
BUSY_SHARE = 0.2  # of a core: who computes with so much of one does not wait
NO_LINE = " here: (no line known)"
MEETING = (  # files of torch: collectives, DDP, and where ranks join
    "distributed_c10d.py",
    "/distributed.py",
    "distributed/rendezvous.py",
)


class Seen(NamedTuple):
    """What a rank last said of itself."""

    frames: list[Frame]
    since: float  # time.monotonic()
    cpu_seconds: float  # that it had used by then


class Whereabouts:
    """Where the ranks of one launch are, as they say five times a second."""

    def __init__(self, run: Run) -> None:
        self.run = run
        # who reads a tensor there waits for the device, in a line like any other
        self.waits_anywhere = run.device in ("cuda", "xpu")
        self.seen: dict[int, Seen] = {}
        self.heard: dict[int, float] = {}  # when each rank last said where it is
        self.last_message = time.monotonic()

    def note(self, rank: int, frames: list[Frame], cpu_seconds: float) -> None:
        """A rank is here, and has used so much CPU time."""
        now, last = time.monotonic(), self.seen.get(rank)
        self.heard[rank] = now
        if last is not None and frames == last.frames:
            # Who computes does not wait, but for an accelerator, which keeps a core busy.
            used, passed = cpu_seconds - last.cpu_seconds, now - last.since
            if self.waits_anywhere or used <= BUSY_SHARE * passed:
                return
        self.seen[rank] = Seen(frames, now, cpu_seconds)

    def groups(self, ranks: Iterable[int]) -> list[RanksAt]:
        """Where these ranks are."""
        latest = time.monotonic() - STOPPED_SECONDS
        stopped = {rank for rank, heard in self.heard.items() if heard < latest}
        stacks = {rank: self.seen[rank].frames if rank in self.seen else [] for rank in ranks}
        return grouped(stacks, stopped)

    def waits(self, rank: int | None) -> bool:
        """Whether it waits for others, as far as it has said."""
        return rank in self.seen and activity(self.seen[rank].frames).waits

    def notice(self, now: float, done: set[int], end: float) -> str:
        """That ranks wait, and where, if nothing has been heard for long; else "".

        Args:
            now, end: the time, and that of the time limit, in seconds of `time.monotonic()`.
        """
        quiet = now - self.last_message
        waiting = [
            rank
            for rank, seen in self.seen.items()
            if rank not in done
            and now - seen.since >= QUIET_SECONDS
            and (self.waits_anywhere or activity(seen.frames) != RUNNING)
        ]
        if quiet < QUIET_SECONDS or not waiting:
            return ""
        groups = self.groups({*range(self.run.ranks)} - done)
        return silent(self.run, quiet, end - now, groups, done)


def grouped(stacks: dict[int, list[Frame]], stopped: Container[int] = ()) -> list[RanksAt]:
    """The ranks at each place at which ranks are, and what they do there.

    Args:
        stacks: of each rank, innermost frame first; none when it was never heard where it is.
        stopped: those that no longer say it.
    """
    groups: dict[tuple[Activity, str], list[int]] = {}
    for rank, frames in sorted(stacks.items()):
        here = place(frames)
        does = STOPPED if here and rank in stopped else activity(frames)
        groups.setdefault((does, here), []).append(rank)
    return [RanksAt(ranks, *what) for what, ranks in groups.items()]


def activity(frames: list[Frame]) -> Activity:
    """What a rank is doing, innermost frame first."""
    if not frames:
        return SILENT
    if program.is_ending(frames):
        return ENDING
    if not own_frames(frames[::-1]):
        names = {name for _, _, name in frames}
        if "prepare" in names:
            return STARTING  # the function has not been called yet
        if "_anywhere" in names:  # of checks/exercise.py: there ranks meet after an answer
            return RETURNED
    public = [(file, name) for file, _, name in frames if not name.startswith(("_", "<"))]
    file, _, function = frames[0]
    calls = []
    if file.endswith(MEETING):
        calls = [name for file, name in public if file.endswith(MEETING)]
    if not calls:
        calls = [name for file, name in public if "/torch_xla/" in file]
    if calls:
        return Activity.wait(f"in {calls[-1]}")
    if any(file.endswith("/xla/replicas.py") for file, _, _ in frames):
        return Activity.wait("for the value of a tensor")
    if function == "_engine_run_backward":
        return Activity.wait("in backward (DDP's all-reduce runs there)")
    return RUNNING


def place(frames: list[Frame]) -> str:
    """The learner's line, for the end of a sentence; "" where nothing is known.

    Of a file of his own also the line that calls it.
    """
    if not frames:
        return ""
    own = own_frames(frames[::-1])
    if not own:
        return "" if activity(frames) in (STARTING, RETURNED, ENDING) else NO_LINE
    lines = own[-1:] if cell_name(own[-1][0]) else own[-2:]
    return " here:\n" + "\n".join(map(location, lines))
