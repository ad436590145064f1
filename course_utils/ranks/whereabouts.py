"""Where ranks are, what they do there, and whether they hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from ..errors import Frame, cell_name, location, own_frames
from . import program
from .run import Run

# of each rank: innermost frame first, none when it was never heard where it is
Stacks = dict[int, list[Frame]]

QUIET_SECONDS = 10.0  # without a message, until the cell says where ranks wait
BUSY_SHARE = 0.2  # of a core: who computes with so much of one does not wait
NO_LINE = " here: (no line known)"
MEETING = (  # files of torch: collectives, DDP, and where ranks join
    "distributed_c10d.py",
    "/distributed.py",
    "distributed/rendezvous.py",
)


class Activity(NamedTuple):
    """What a rank does, in the words for one and for several."""

    one: str
    several: str
    waits: bool = False

    @classmethod
    def wait(cls, where: str) -> Activity:
        return cls(f"waits {where}", f"wait {where}", waits=True)


RUNNING = Activity("is", "are")
SILENT = Activity("does not answer", "do not answer")
STARTING = Activity("is starting", "are starting")
JOINING = Activity("has returned, and a thread of its own is", "have returned, and threads are")
LEAVING = Activity("has returned, and runs exit handlers", "have returned, and run exit handlers")


class RanksAt(NamedTuple):
    """Ranks that do the same at the same place."""

    ranks: list[int]
    activity: Activity
    place: str  # " here:" and the line

    def sentence(self, label: str) -> str:
        """A sentence that begins with `label`."""
        words = self.activity.one if len(self.ranks) == 1 else self.activity.several
        return f"{label} {words}{self.place}"


class Seen(NamedTuple):
    """What a rank last said of itself."""

    frames: list[Frame]
    since: float  # time.monotonic()
    cpu_seconds: float  # that it had used by then


class Whereabouts:
    """Where the ranks of one launch are, as they say five times a second."""

    def __init__(self, run: Run) -> None:
        self.run = run
        # who reads a tensor there waits, and keeps a core busy with it
        self.spins = run.device in ("cuda", "xpu")
        self.seen: dict[int, Seen] = {}
        self.last_message = time.monotonic()

    def note(self, rank: int, frames: list[Frame], cpu_seconds: float) -> None:
        """A rank says where it is, and how much CPU time it has used."""
        now, last = time.monotonic(), self.seen.get(rank)
        if last is None or frames != last.frames or self._computes(last, now, cpu_seconds):
            self.seen[rank] = Seen(frames, now, cpu_seconds)

    def _computes(self, last: Seen, now: float, cpu_seconds: float) -> bool:
        share = BUSY_SHARE * (now - last.since)
        return not self.spins and cpu_seconds - last.cpu_seconds > share

    def of(self, ranks: Iterable[int]) -> Stacks:
        """Where these ranks are; no frames for one that has not said it."""
        return {rank: self.seen[rank].frames if rank in self.seen else [] for rank in ranks}

    def waits(self, rank: int) -> bool:
        """Whether it waits for others, as far as it has said."""
        return rank in self.seen and activity(self.seen[rank].frames).waits

    def notice(self, now: float, done: set[int], end: float) -> str:
        """That ranks wait, and where, if nothing has been heard for long; else "".

        Args:
            now, end: the time, and that of the time limit, in seconds of `time.monotonic()`.
        """
        quiet = now - self.last_message
        if quiet < QUIET_SECONDS or not any(
            rank not in done
            and now - seen.since >= QUIET_SECONDS
            and (self.spins or activity(seen.frames) != RUNNING)
            for rank, seen in self.seen.items()
        ):
            return ""
        first = f"Nothing heard for {quiet:.0f} s."
        if end < inf:
            first += f" The time limit ends this in {max(0.0, end - now):.0f} s."
        places = grouped(self.of(set(range(self.run.ranks)) - done))
        unit = self.run.unit
        return "\n".join([first, *sentences(places, unit), *returned(done, unit)])


def grouped(stacks: Stacks) -> list[RanksAt]:
    """The ranks at each place at which ranks are, and what they do there."""
    groups: dict[tuple[Activity, str], list[int]] = {}
    for rank, frames in sorted(stacks.items()):
        groups.setdefault((activity(frames), place(frames)), []).append(rank)
    return [RanksAt(ranks, *what) for what, ranks in groups.items()]


def activity(frames: list[Frame]) -> Activity:
    """What a rank is doing, innermost frame first."""
    if not frames:
        return SILENT
    if program.is_ending(frames):
        shutdown = threading.__file__, "_shutdown"  # which joins threads
        joins = any((file, name) == shutdown for file, _, name in frames)
        return JOINING if joins else LEAVING
    if not own_frames(frames[::-1]) and any(name == "prepare" for _, _, name in frames):
        return STARTING  # the function has not been called yet
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

    Of a cell that calls into a file of his own, both.
    """
    if not frames:
        return ""
    own = own_frames(frames[::-1])
    innermost = own[-1:]
    if innermost and not cell_name(innermost[0][0]):
        innermost = [frame for frame in own[-2:-1] if cell_name(frame[0])] + innermost
    if not innermost:
        return "" if activity(frames) in (STARTING, LEAVING) else NO_LINE
    return " here:\n" + "\n".join(map(location, innermost))


def sentences(places: list[RanksAt], unit: str) -> list[str]:
    """For each place at which ranks are, who is there and what they do there."""
    return [place.sentence(listed(place.ranks, unit)) for place in places]


def returned(done: set[int], unit: str) -> list[str]:
    """Who has returned, if anyone has."""
    if not done:
        return []
    return [f"{listed(done, unit)} had returned: a collective needs every {unit}."]


def listed(ranks: Iterable[int], unit: str) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `cores 0, 1`."""
    numbers = [str(rank) for rank in sorted(ranks)]
    return f"{unit if len(numbers) == 1 else f'{unit}s'} {', '.join(numbers)}"
