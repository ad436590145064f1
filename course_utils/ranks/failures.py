"""One error for many ranks, in words: which rank, what happened, at which line of which cell, what to do next."""

import signal
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import Frame, RankError, own_frames, place
from .run import Run

Stacks = dict[int, list[Frame]]  # of each rank: innermost frame first, none when it was never heard where it is

SIGNALS = {
    "SIGKILL": "was killed (SIGKILL)",
    "SIGTERM": "was ended (SIGTERM)",
    "SIGSEGV": "crashed (SIGSEGV: a memory error in compiled code)",
    "SIGABRT": "aborted (SIGABRT: compiled code gave up)",
    "SIGBUS": "crashed (SIGBUS: often a full /dev/shm; use fewer DataLoader workers or smaller batches)",
}
ADVICE = {
    "SIGABRT": "Its last words are in error.run.output.",
    "SIGKILL": "Where memory runs out, the system does this: use fewer ranks, a smaller model or smaller batches.",
}
GROUPS = ("distributed_c10d.py", "/distributed.py")  # torch's collectives, and DDP


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
    return RankError(said, rank=first.rank, cause=first.cause, traceback=first.traceback, run=run, advice=advice)


def too_late(run: Run, limit: float, done: set[int], stacks: Stacks) -> RankError:
    """The time limit came before all ranks had returned; `stacks`: where the others were."""
    late = [rank for rank in range(run.ranks) if rank not in done]
    lines = [f"{listed(late, run.unit)} of {run.ranks} had not finished after the time limit of {limit:g} s"]
    lines += scene(run, done, stacks)
    busy = [rank for rank in late if not doing(stacks[rank]).startswith("waits")]
    culprit = (late if len(late) == 1 else busy if len(busy) == 1 else [None])[0]
    if culprit is not None and len(late) > 1:
        waiting = [rank for rank in late if rank != culprit]
        lines.append(f"{listed(waiting, run.unit)} wait{'s' * (len(waiting) == 1)} for {run.unit} {culprit}.")
    advice = "If the work is only slow, pass a larger time_limit (seconds), or None."
    return RankError("\n".join(lines), rank=culprit, cause="TimeLimit", traceback="", run=run, advice=advice)


def scene(run: Run, done: set[int], stacks: Stacks) -> list[str]:
    """Where all ranks are, and who has returned."""
    lines = by_place({rank: frames for rank, frames in stacks.items() if rank not in done}, run.unit)
    if done:
        lines.append(f"{listed(done, run.unit)} had returned: a collective needs every {run.unit}.")
    return lines


def died(who: str, exitcode: int) -> tuple[str, str]:
    """(cause, sentence) for a process that ended by itself."""
    if exitcode >= 0:
        return "Exit", f"{who} ended with exit code {exitcode} before its function returned"
    name = signal.Signals(-exitcode).name
    return name, f"{who} {SIGNALS.get(name, f'was ended by {name}')}"


def doing(frames: list[Frame]) -> str:
    """What a rank is doing, innermost frame first: `waits in all_reduce`, or `is` (somewhere)."""
    if not frames:
        return "does not answer"
    file, _, function = frames[0]
    public = [(file, name) for file, _, name in frames if not name.startswith(("_", "<"))]
    if file.endswith(GROUPS) and (calls := [name for file, name in public if file.endswith(GROUPS)]):
        return f"waits in {calls[-1]}"
    if calls := [name for file, name in public if "/torch_xla/" in file]:
        return f"waits in {calls[-1]}"
    if any(file.endswith("/xla/replicas.py") for file, _, _ in frames):
        return "waits for the value of a tensor"
    return "waits in backward (DDP's all-reduce runs there)" if function == "_engine_run_backward" else "is"


def by_place(stacks: Stacks, unit: str) -> list[str]:
    """For each place at which ranks are, who is there and what they do there."""
    groups: dict[tuple[str, Frame | None], list[int]] = {}
    for rank, frames in sorted(stacks.items()):
        own = own_frames(frames)
        groups.setdefault((doing(frames), own[0] if own else None), []).append(rank)
    said = []
    for (what, frame), ranks in groups.items():
        if len(ranks) > 1:
            what = {"is": "are", "does not answer": "do not answer"}.get(what, what.replace("waits", "wait", 1))
        at = "" if what.endswith("answer") else " here:\n" + place(frame) if frame else " here: (no line known)"
        said.append(f"{listed(ranks, unit)} {what}{at}")
    return said


def listed(ranks: Iterable[int], unit: str) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `cores 0, 1`."""
    ranks = sorted(ranks)
    return f"{unit}{'s' * (len(ranks) > 1)} " + ", ".join(map(str, ranks))
