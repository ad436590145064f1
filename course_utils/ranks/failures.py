"""One error for many ranks, in words: which rank, what happened, at which line of which cell, what to do next."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import signal
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import psutil

from ..errors import Frame, RankError, cell_name, own_frames, place
from .run import Run

Stacks = dict[int, list[Frame]]  # of each rank, or thread: innermost frame first

ANSWER = 0.3  # seconds a rank has to say where it is
FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)", re.MULTILINE)
SIGNALS = {
    "SIGKILL": "was killed (SIGKILL)",
    "SIGTERM": "was ended (SIGTERM)",
    "SIGSEGV": "crashed (SIGSEGV: a memory error in compiled code)",
    "SIGABRT": "aborted (SIGABRT: compiled code gave up)",
    "SIGBUS": "crashed (SIGBUS: often a full /dev/shm; use fewer DataLoader workers or smaller batches)",
}
OUT_OF_MEMORY = "was killed because memory ran out (SIGKILL): use fewer ranks, a smaller model or smaller batches"
GROUPS = ("distributed_c10d.py", "/distributed.py")  # torch's collectives, and DDP


class Failure(NamedTuple):
    """What ended a launch; the first one counts, and a death before all that the others raised because of it."""

    time: float
    rank: int | None
    cause: str
    said: str
    frames: list[Frame]  # outermost first
    traceback: str  # "" for a process that died


def failed(run: Run, first: Failure, stacks: Stacks, pids: dict[int, int]) -> RankError:
    """A rank raised or died; `stacks`: where the others were."""
    lines = [first.said, *map(place, own_frames(first.frames)[-3:])]
    lines += [f"meanwhile {line}" for line in whereabouts(stacks, run.unit, pids)]
    advice = "Its last words are in error.run.output." if first.cause == "SIGABRT" else ""
    said, cause, trace = "\n".join(lines), first.cause, first.traceback
    return RankError(said, rank=first.rank, cause=cause, traceback=trace, run=run, advice=advice)


def too_late(run: Run, limit: float, done: set[int], stacks: Stacks, pids: dict[int, int]) -> RankError:
    """The time limit came before all ranks had returned; `stacks`: where the others were."""
    late = [rank for rank in range(run.ranks) if rank not in done]
    places = whereabouts(stacks, run.unit, pids)
    lines = [f"{listed(late, run.unit)} of {run.ranks} had not finished after the time limit of {limit:g} s", *places]
    if done:
        lines.append(f"{listed(sorted(done), run.unit)} had returned: a collective needs every {run.unit}.")
    busy = [rank for rank, frames in stacks.items() if not frames or doing(frames) == "is"]
    culprit = (late if len(late) == 1 else busy if len(busy) == 1 else [None])[0]
    if culprit is not None and len(late) > 1:
        waiting = [rank for rank in late if rank != culprit]
        lines.append(f"{listed(waiting, run.unit)} wait{'s' * (len(waiting) == 1)} for {run.unit} {culprit}.")
    advice = "If the work is only slow, pass a larger time_limit (seconds), or None."
    said, where = "\n".join(lines), "\n".join(places)
    return RankError(said, rank=culprit, cause="TimeLimit", traceback=where, run=run, advice=advice)


def died(who: str, exitcode: int | None, *, out_of_memory: bool) -> tuple[str, str]:
    """(cause, sentence) for a process that ended by itself."""
    if exitcode is None or exitcode >= 0:
        return "Exit", f"{who} ended with exit code {exitcode} before its function returned"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    if name == "SIGKILL" and out_of_memory:
        return name, f"{who} {OUT_OF_MEMORY}"
    return name, f"{who} {SIGNALS.get(name, f'was ended by {name}')}"


def kills_for_memory() -> int:
    """How often the system has ended a process of this control group because memory ran out; 0 where nobody counts."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2]
        events = Path(f"/sys/fs/cgroup{group}/memory.events").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))


def cpu_seconds(pid: int) -> float:
    """What a process has used so far; 0 for one that is gone."""
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
    return 0.0


def answers(pipes: Iterable[Connection]) -> dict[Connection, Stacks]:
    """What processes write when they are asked where they are, or wrote when they crashed, by thread."""
    said = dict.fromkeys(pipes, b"")
    waiting, end = set(said), time.monotonic() + ANSWER
    while waiting and (left := end - time.monotonic()) > 0:
        for pipe in wait(waiting, left):
            if data := os.read(pipe.fileno(), 1 << 16):
                said[pipe] += data
            else:  # it ended
                waiting.discard(pipe)
        if all(said[pipe] for pipe in waiting):
            end = min(end, time.monotonic() + ANSWER / 5)  # the last lines of the longest stack
    return {pipe: _by_thread(text.decode(errors="replace")) for pipe, text in said.items()}


def _by_thread(text: str) -> Stacks:
    _, *parts = THREAD.split(text)
    return {
        int(thread, 16): [(file, int(line), name) for file, line, name in FRAME.findall(stack)]
        for thread, stack in zip(parts[::2], parts[1::2], strict=True)
    }


def doing(frames: list[Frame]) -> str:
    """What a rank is doing, innermost frame first: `waits in all_reduce`, or `is` (somewhere)."""
    file, _, function = frames[0]
    public = [(file, name) for file, _, name in frames if not name.startswith(("_", "<"))]
    if file.endswith(GROUPS) and (calls := [name for file, name in public if file.endswith(GROUPS)]):
        return f"waits in {calls[-1]}"
    if calls := [name for file, name in public if "/torch_xla/" in file]:
        return f"waits in {calls[-1]}"
    if any(file.endswith("/xla/replicas.py") for file, _, _ in frames):
        return "waits for the value of a tensor"
    return "waits in backward (DDP's all-reduce runs there)" if function == "_engine_run_backward" else "is"


def whereabouts(stacks: Stacks, unit: str, pids: dict[int, int], *, line: bool = False) -> list[str]:
    """For each place at which ranks are, who is there and what they do there; `line`: in one line."""
    said = [f"{unit} {rank} {_silent(pids.get(rank, 0))}" for rank, frames in sorted(stacks.items()) if not frames]
    groups: dict[tuple[str, Frame | None], list[int]] = {}
    for rank, frames in sorted(stacks.items()):
        if frames:
            own = own_frames(frames)
            groups.setdefault((doing(frames), own[0] if own else None), []).append(rank)
    for (what, frame), ranks in groups.items():
        if len(ranks) > 1:
            what = "are" if what == "is" else what.replace("waits", "wait", 1)
        who = f"{listed(ranks, unit)} {what}"
        if frame is None:
            said.append(f"{who} here: (no line known)")
        elif line:
            file, number, _ = frame
            where = f"{cell_name(file) or Path(file).name}, line {number}"
            code = linecache.getline(file, number).strip()
            said.append(f"{who} ({where})" if what.startswith("wait") else f"{who} at {where}: {code}")
        else:
            said.append(f"{who} here:\n{place(frame)}")
    return said


def in_a_line(run: Run, done: set[int], stacks: Stacks, pids: dict[int, int]) -> str:
    """Where those are that have not returned."""
    returned = [f"{listed(sorted(done), run.unit)} returned"] if done else []
    return "; ".join(whereabouts(stacks, run.unit, pids, line=True) + returned)


def _silent(pid: int) -> str:
    """What to say of a living rank that does not answer when it is asked where it is."""
    with contextlib.suppress(psutil.Error):
        if pid and psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            return f"does not answer: its process is stopped (SIGSTOP); `kill -CONT {pid}` in a terminal lets it go on"
    return "does not answer"


def listed(ranks: list[int], unit: str) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `cores 0, 1`."""
    return f"{unit}{'s' * (len(ranks) > 1)} " + ", ".join(map(str, ranks))
