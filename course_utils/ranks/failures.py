"""One error for many ranks, in words: which rank, what happened, at which line of which cell, what to do next."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from ..errors import Frame, cell_name, own_frames, place

WORDS = {
    "SIGKILL": "was killed (SIGKILL)",
    "SIGTERM": "was ended (SIGTERM)",
    "SIGSEGV": "crashed (SIGSEGV: a memory error in compiled code)",
    "SIGABRT": "aborted (SIGABRT: compiled code gave up)",
    "SIGBUS": "crashed (SIGBUS: often a full /dev/shm; use fewer DataLoader workers or smaller batches)",
}


def raised(who: str, name: str, message: str, frames: list[Frame]) -> str:
    """`rank 2 of 4 raised ValueError: …` and the lines of the learner's code that led there."""
    if name == "SystemExit":
        what = f"{who} called sys.exit({message}) before its function returned"
    else:
        what = f"{who} raised {name}" + (f": {message}" if message else "")
    return "\n".join([what, *(place(frame) for frame in own_frames(frames)[-3:])])


def died(who: str, exitcode: int | None, *, out_of_memory: bool) -> tuple[str, str]:
    """(cause, sentence) for a process that ended by itself."""
    if exitcode is None or exitcode >= 0:
        return "Exit", f"{who} ended with exit code {exitcode} before its function returned"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    words = WORDS.get(name, f"was ended by {name}")
    if out_of_memory:
        words = "was killed because memory ran out (SIGKILL): use fewer ranks, a smaller model or smaller batches"
    return name, f"{who} {words}"


def doing(frames: list[Frame]) -> str:
    """What a rank is doing, innermost frame first: `waits in all_reduce`, `is in sleep`, …"""
    inner = [f for f in frames if not cell_name(f[0])]
    calls = []
    for file, _, function in inner:
        if file.endswith(("distributed_c10d.py", "/distributed.py")) and not function.startswith(("_", "<")):
            calls.append(function)
    if calls:
        return f"waits in {calls[-1]}"
    calls = [function for file, _, function in inner if "/torch_xla/" in file and not function.startswith(("_", "<"))]
    if calls:
        return f"waits in {calls[-1]}"
    if any(file.endswith("/xla/replicas.py") for file, _, _ in inner):
        return "waits for the value of a tensor"
    if any(function == "_engine_run_backward" for _, _, function in inner):
        return "waits in backward (DDP's all-reduce runs there)"
    return "is"


def whereabouts(stacks: dict[int, list[Frame]], unit: str, silent: Callable[[int], str]) -> list[str]:
    """One paragraph for each place at which ranks are: `ranks 0, 1, 2 wait in all_reduce` + the cell's line.

    silent: what to say of a rank that gave no frames, because it is stopped, or never came to answer.
    """
    groups: dict[tuple[str, Frame | None], list[int]] = {}
    lines = [f"{unit} {rank} {silent(rank)}" for rank, frames in sorted(stacks.items()) if not frames]
    for rank, frames in sorted(stacks.items()):
        if not frames:
            continue
        own = own_frames(frames)
        groups.setdefault((doing(frames), own[0] if own else None), []).append(rank)
    for (what, frame), ranks in groups.items():
        if len(ranks) > 1:
            what = what.replace("waits", "wait").replace("is", "are")
        lines.append(f"{listed(ranks, unit)} {what} here:" + (f"\n{place(frame)}" if frame else " (no line known)"))
    return lines


def keeps_waiting(stacks: dict[int, list[Frame]]) -> int | None:
    """The one rank that does not wait while all others wait in a collective; None where it is not so."""
    others = [rank for rank, frames in stacks.items() if not doing(frames).startswith("waits")]
    return others[0] if len(others) == 1 < len(stacks) else None


def listed(ranks: list[int], unit: str) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `cores 0, 1`."""
    return f"{unit}{'s' * (len(ranks) > 1)} " + ", ".join(map(str, ranks))


def kills_for_memory() -> int:
    """How often the system has ended a process of this container because memory ran out."""
    try:
        events = Path("/sys/fs/cgroup/memory.events").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))
