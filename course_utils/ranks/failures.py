"""One error for many ranks: which rank, what happened, at which line of which cell; and where ranks are that hang."""

import signal
import time
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from ..errors import Frame, RankError, own_frames, place
from ..pictures.screen import Place, shell
from .run import Run

Stacks = dict[
    int, list[Frame]
]  # of each rank: innermost frame first, none when it was never heard where it is

SILENCE = 10.0  # seconds
BUSY = 0.2  # of a core: who computes with so much of one does not wait
GROUPS = ("distributed_c10d.py", "/distributed.py")  # torch's collectives, and DDP
ENDS = {"SIGKILL": "was killed", "SIGSEGV": "crashed", "SIGBUS": "crashed", "SIGABRT": "crashed"}
ADVICE = {
    "SIGKILL": "Where memory runs out, the system does this: use fewer ranks, a smaller model or smaller batches.",
    "SIGABRT": "Compiled code gave up; on virtual cores, where one has not come to a collective for ten seconds.",
    "SIGBUS": "Often /dev/shm is full: use fewer DataLoader workers or smaller batches.",
}


class Failure(NamedTuple):
    """What ended a launch; the first one counts, and a death before all that the others raised because of it."""

    time: float
    rank: int | None
    cause: str
    said: str
    frames: list[Frame]  # outermost first
    traceback: str  # "" for a process that died


def failed(run: Run, first: Failure, stacks: Stacks) -> RankError:
    """A rank raised or died; `stacks`: where the others were."""
    lines = [first.said, *map(place, own_frames(first.frames)[-3:])]
    lines += [f"meanwhile {line}" for line in by_place(stacks, run.unit)]
    said, advice = "\n".join(lines), ADVICE.get(first.cause, "")
    return RankError(
        said, rank=first.rank, cause=first.cause, traceback=first.traceback, run=run, advice=advice
    )


def too_late(run: Run, limit: float, done: set[int], stacks: Stacks) -> RankError:
    """The time limit came before all ranks had returned; `stacks`: where the others were."""
    late = [rank for rank in range(run.ranks) if rank not in done]
    lines = [
        f"{listed(late, run.unit)} of {run.ranks} had not finished after the time limit of {limit:g} s"
    ]
    lines += scene(run, done, stacks)
    busy = [rank for rank in late if not doing(stacks[rank]).startswith("waits")]
    culprit = (late if len(late) == 1 else busy if len(busy) == 1 else [None])[0]
    if waiting := [rank for rank in late if rank not in busy] if len(busy) == 1 else []:
        lines.append(
            f"{listed(waiting, run.unit)} wait{'s' * (len(waiting) == 1)} for {run.unit} {culprit}."
        )
    advice = "If the work is only slow, pass a larger time_limit (seconds), or None."
    return RankError(
        "\n".join(lines), rank=culprit, cause="TimeLimit", traceback="", run=run, advice=advice
    )


def died(who: str, exitcode: int) -> tuple[str, str]:
    """(cause, sentence) for a process that ended by itself."""
    if exitcode >= 0:
        return "Exit", f"{who} ended with exit code {exitcode} before its function returned"
    name = signal.Signals(-exitcode).name
    return name, f"{who} {ENDS.get(name, 'was ended')} ({name})"


class Whereabouts:
    """Where the ranks of one launch are, as they say twice a second."""

    def __init__(self, run: Run) -> None:
        self.run, self.place, self.shown = run, Place(), ""
        self.spins = run.device in (
            "cuda",
            "xpu",
        )  # who reads a tensor there waits, and keeps a core busy with it
        self.at: dict[
            int, tuple[list[Frame], float, float]
        ] = {}  # where, since when, CPU seconds used until then

    def hear(self, rank: int, frames: list[Frame], used: float) -> None:
        """A rank says where it is, and how much CPU time it has used."""
        now = time.monotonic()
        was, since, had = self.at.get(rank, (None, now, used))
        if frames != was or (not self.spins and used - had > BUSY * (now - since)):
            self.at[rank] = frames, now, used

    def of(self, ranks: Iterable[int]) -> Stacks:
        """Where these ranks are; no frames for one that has not said it."""
        return {rank: self.at[rank][0] if rank in self.at else [] for rank in ranks}

    def tell(self, heard: float, done: set[int], end: float) -> None:
        """Show that ranks wait, in a cell that has heard nothing since `heard`, or take this away when they go on."""
        now = time.monotonic()
        waiting = any(
            rank not in done and now - since >= SILENCE and (self.spins or doing(frames) != "is")
            for rank, (frames, since, _) in self.at.items()
        )
        lines = []
        if waiting and now - heard >= SILENCE:
            limit = (
                f" The time limit ends this in {max(0.0, end - now):.0f} s." if end < inf else ""
            )
            lines = [f"Nothing heard for {now - heard:.0f} s.{limit}"]
            lines += scene(self.run, done, self.of(range(self.run.ranks)))
        self.show("\n".join(lines))

    def show(self, text: str) -> None:
        """Show this in the cell, in place of what was shown."""
        if text != self.shown and shell() is not None:
            self.place.show({"text/plain": text})
        self.shown = text


def scene(run: Run, done: set[int], stacks: Stacks) -> list[str]:
    """Where all ranks are, and who has returned."""
    lines = by_place(
        {rank: frames for rank, frames in stacks.items() if rank not in done}, run.unit
    )
    if done:
        lines.append(f"{listed(done, run.unit)} had returned: a collective needs every {run.unit}.")
    return lines


def doing(frames: list[Frame]) -> str:
    """What a rank is doing, innermost frame first: `waits in all_reduce`, or `is` (somewhere)."""
    if not frames:
        return "does not answer"
    file, _, function = frames[0]
    public = [(file, name) for file, _, name in frames if not name.startswith(("_", "<"))]
    calls = (
        [name for file, name in public if file.endswith(GROUPS)] if file.endswith(GROUPS) else []
    )
    if calls := calls or [name for file, name in public if "/torch_xla/" in file]:
        return f"waits in {calls[-1]}"
    if any(file.endswith("/xla/replicas.py") for file, _, _ in frames):
        return "waits for the value of a tensor"
    return (
        "waits in backward (DDP's all-reduce runs there)"
        if function == "_engine_run_backward"
        else "is"
    )


def by_place(stacks: Stacks, unit: str) -> list[str]:
    """For each place at which ranks are, who is there and what they do there."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, frames in sorted(stacks.items()):
        own = own_frames(frames)
        at = " here:\n" + place(own[0]) if own else " here: (no line known)" if frames else ""
        groups.setdefault((doing(frames), at), []).append(rank)
    plural = {"is": "are", "does": "do", "waits": "wait"}
    said = []
    for (what, at), ranks in groups.items():
        verb, *rest = what.split(" ", 1)
        said.append(
            " ".join([listed(ranks, unit), plural[verb] if len(ranks) > 1 else verb, *rest]) + at
        )
    return said


def listed(ranks: Iterable[int], unit: str) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `cores 0, 1`."""
    ranks = sorted(ranks)
    return f"{unit}{'s' * (len(ranks) > 1)} " + ", ".join(map(str, ranks))
