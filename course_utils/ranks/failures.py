"""One error for many ranks: which one, what happened, in which cell's line; where ranks hang."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from ..errors import Frame, RankError, location, own_frames
from ..pictures.display import Display, shell
from .run import Run

# of each rank: innermost frame first, none when it was never heard where it is
Stacks = dict[int, list[Frame]]

SILENCE = 10.0  # seconds
BUSY = 0.2  # of a core: who computes with so much of one does not wait
NO_LINE = " here: (no line known)"
GROUPS = (  # torch's collectives, DDP, and where ranks meet
    "distributed_c10d.py",
    "/distributed.py",
    "distributed/rendezvous.py",
)
ENDS = {"SIGKILL": "was killed", "SIGSEGV": "crashed", "SIGBUS": "crashed", "SIGABRT": "crashed"}
ADVICE = {
    "SIGKILL": "Where memory runs out, the system does this: use fewer ranks, a smaller model or "
    "smaller batches.",
    "SIGABRT": "Compiled code gave up; on virtual cores, where one has not come to a collective "
    "for ten seconds.",
    "SIGBUS": "Often /dev/shm is full: use fewer DataLoader workers or smaller batches.",
}

REFUSED = (  # TorchTPU ends a process so
    "Another process may have the TPU, which one at a time can have: shut down other kernels and "
    "programs that use it, and run this again."
)


class Failure(NamedTuple):
    """What ended a launch; the first one counts, and a death before all that the others raised
    because of it.
    """

    time: float
    rank: int | None
    cause: str
    said: str
    frames: list[Frame]  # outermost first
    traceback: str  # "" for a process that died


class Doing(NamedTuple):
    """What a rank does, in the words for one and for several."""

    one: str
    several: str
    waits: bool = False

    @classmethod
    def wait(cls, where: str) -> Doing:
        return cls(f"waits {where}", f"wait {where}", waits=True)


SOMEWHERE = Doing("is", "are")


class Group(NamedTuple):
    """Ranks that do the same at the same place."""

    ranks: list[int]
    doing: Doing
    at: str  # " here:" and the line

    def said(self, who: str) -> str:
        """In a sentence that begins with `who`."""
        words = self.doing.one if len(self.ranks) == 1 else self.doing.several
        return f"{who} {words}{self.at}"


class Facts(NamedTuple):
    """What is known of ranks that failed, for a check to say it in words of its own."""

    said: str  # "rank 2 of 4 raised ValueError: bad shard"
    lines: list[str]  # where that was
    groups: list[Group]  # where the others are
    limit: float | None = None  # seconds; those in `groups` had not finished then
    ends: Sequence[str] = ()  # who had returned, and who waits for whom


def failed(run: Run, first: Failure, stacks: Stacks) -> RankError:
    """A rank raised or died; `stacks`: where the others were."""
    lines = [location(frame) for frame in own_frames(first.frames)[-3:]]
    facts = Facts(first.said, lines, grouped(stacks))
    others = [f"meanwhile {line}" for line in by_place(facts.groups, run.unit)]
    advice = ADVICE.get(first.cause, "")
    if run.device == "tpu" and first.cause == "SIGABRT":
        advice = REFUSED
    return RankError(
        [facts.said, *lines, *others, advice],
        rank=first.rank,
        cause=first.cause,
        traceback=first.traceback,
        run=run,
        facts=facts,
    )


def too_late(run: Run, limit: float, done: set[int], stacks: Stacks) -> RankError:
    """The time limit came before all ranks had returned; `stacks`: where the others were."""
    late = [rank for rank in range(run.ranks) if rank not in done]
    groups = grouped({rank: stacks[rank] for rank in late})
    busy = [rank for group in groups if not group.doing.waits for rank in group.ranks]
    suspects = late if len(late) == 1 else busy
    culprit = suspects[0] if len(suspects) == 1 else None

    ends = returned(done, run.unit)
    waiting = [] if culprit is None else [rank for rank in late if rank != culprit]
    if waiting:
        waits = Group(waiting, Doing.wait(f"for {run.unit} {culprit}."), "")
        ends.append(waits.said(listed(waiting, run.unit)))
    said = f"{listed(late, run.unit)} of {run.ranks} had not finished after the time limit of "
    facts = Facts(f"{said}{limit:g} s", [], groups, limit, ends)
    advice = "If the work is only slow, pass a larger time_limit (seconds), or None."
    return RankError(
        [facts.said, *by_place(groups, run.unit), *ends, advice],
        rank=culprit,
        cause="TimeLimit",
        traceback="",
        run=run,
        facts=facts,
    )


def raised(name: str, message: str) -> str:
    """What is said of a rank that raised."""
    return f"raised {name}: {message}" if message else f"raised {name}"


def died(who: str, exitcode: int) -> tuple[str, str]:
    """(cause, sentence) for a process that ended by itself."""
    if exitcode >= 0:
        return "Exit", f"{who} ended with exit code {exitcode} before its function returned"
    name = signal.Signals(-exitcode).name
    return name, f"{who} {ENDS.get(name, 'was ended')} ({name})"


class Whereabouts:
    """Where the ranks of one launch are, as they say twice a second."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.display = Display()
        self.shown = ""
        # who reads a tensor there waits, and keeps a core busy with it
        self.spins = run.device in ("cuda", "xpu")
        # where, since when, CPU seconds used until then
        self.at: dict[int, tuple[list[Frame], float, float]] = {}

    def hear(self, rank: int, frames: list[Frame], used: float) -> None:
        """A rank says where it is, and how much CPU time it has used."""
        now = time.monotonic()
        was, since, had = self.at.get(rank, (None, now, used))
        computes = not self.spins and used - had > BUSY * (now - since)
        if frames != was or computes:
            self.at[rank] = frames, now, used

    def of(self, ranks: Iterable[int]) -> Stacks:
        """Where these ranks are; no frames for one that has not said it."""
        return {rank: self.at[rank][0] if rank in self.at else [] for rank in ranks}

    def tell(self, heard: float, done: set[int], end: float) -> None:
        """Show that ranks wait in a cell that has heard nothing since `heard`, until they go on."""
        now = time.monotonic()
        waiting = any(
            rank not in done
            and now - since >= SILENCE
            and (self.spins or doing(frames) != SOMEWHERE)
            for rank, (frames, since, _) in self.at.items()
        )
        if not waiting or now - heard < SILENCE:
            self.show("")
            return

        first = f"Nothing heard for {now - heard:.0f} s."
        if end < inf:
            first += f" The time limit ends this in {max(0.0, end - now):.0f} s."
        groups = grouped(self.of(set(range(self.run.ranks)) - done))
        unit = self.run.unit
        self.show("\n".join([first, *by_place(groups, unit), *returned(done, unit)]))

    def show(self, text: str) -> None:
        """Show this in the cell, in place of what was shown."""
        if text != self.shown and shell() is not None:
            self.display.show({"text/plain": text})
        self.shown = text


def grouped(stacks: Stacks) -> list[Group]:
    """The ranks at each place at which ranks are, and what they do there."""
    groups: dict[tuple[Doing, str], list[int]] = {}
    for rank, frames in sorted(stacks.items()):
        groups.setdefault((doing(frames), here(frames)), []).append(rank)
    return [Group(ranks, *what) for what, ranks in groups.items()]


def doing(frames: list[Frame]) -> Doing:
    """What a rank is doing, innermost frame first."""
    if not frames:
        return Doing("does not answer", "do not answer")
    public = [(file, name) for file, _, name in frames if not name.startswith(("_", "<"))]
    file, _, function = frames[0]
    calls = []
    if file.endswith(GROUPS):
        calls = [name for file, name in public if file.endswith(GROUPS)]
    if not calls:
        calls = [name for file, name in public if "/torch_xla/" in file]
    if calls:
        return Doing.wait(f"in {calls[-1]}")
    if any(file.endswith("/xla/replicas.py") for file, _, _ in frames):
        return Doing.wait("for the value of a tensor")
    if function == "_engine_run_backward":
        return Doing.wait("in backward (DDP's all-reduce runs there)")
    return SOMEWHERE


def here(frames: list[Frame]) -> str:
    """The learner's line, for the end of a sentence; "" where nothing is known."""
    if not frames:
        return ""
    own = own_frames(frames)
    return f" here:\n{location(own[0])}" if own else NO_LINE


def by_place(groups: list[Group], unit: str) -> list[str]:
    """For each place at which ranks are, who is there and what they do there."""
    return [group.said(listed(group.ranks, unit)) for group in groups]


def returned(done: set[int], unit: str) -> list[str]:
    """Who has returned, if anyone has."""
    if not done:
        return []
    return [f"{listed(done, unit)} had returned: a collective needs every {unit}."]


def listed(ranks: Iterable[int], unit: str) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `cores 0, 1`."""
    numbers = [str(rank) for rank in sorted(ranks)]
    return f"{unit if len(numbers) == 1 else f'{unit}s'} {', '.join(numbers)}"
