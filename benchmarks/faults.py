"""How soon a cell answers when a rank fails, and how soon nothing of the launch is left."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time

import psutil
from bench import Kernel, machine, median, middle, options, show, table, targets

SETUP = """
import os, signal, sys, time, torch, torch.distributed as dist
from course_utils import launch, warm_up
warm_up()
def fault(what):
    if dist.get_rank() == 1:
        time.sleep(0.3)
        if what == "raises": raise ValueError
        if what == "is killed": os.kill(os.getpid(), signal.SIGKILL)
        if what == "leaves by os._exit": os._exit(0)
        if what == "misses a collective": time.sleep(600)
    dist.all_reduce(torch.ones(1))
    time.sleep(600)
def seconds(what, limit):
    began = time.perf_counter()
    try: launch(fault, what, ranks=4, time_limit=limit)
    except Exception: pass
    return time.perf_counter() - began
launch(dist.get_rank, ranks=4)
"""
SLEEP, LIMIT = 0.3, 2.0  # seconds that belong to the fault itself
FAULTS = ("raises", "is killed", "leaves by os._exit", "misses a collective")


def descendants(pid: int) -> list[psutil.Process]:
    """The ranks and what they started: children of the kernel's children."""
    return [process for child in psutil.Process(pid).children() for process in child.children(recursive=True)]


def alive(processes: list[psutil.Process]) -> bool:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def until_gone(processes: list[psutil.Process]) -> float:
    began = time.perf_counter()
    while alive(processes) and time.perf_counter() - began < 60:
        time.sleep(0.005)
    return round(time.perf_counter() - began, 3)


def stopped(folder: str, number: signal.Signals) -> tuple[float, float]:
    """(seconds until the cell answers, seconds until no rank is left) after the kernel got a signal in mid-run."""
    with Kernel(folder) as kernel:
        kernel.run(SETUP)
        finish = kernel.begin("fault_run = launch(fault, 'waits', ranks=4)")
        while len(descendants(kernel.pid)) < 4:
            time.sleep(0.02)
        time.sleep(1.0)
        family = psutil.Process(kernel.pid).children(recursive=True) if number == signal.SIGKILL else []
        ranks = descendants(kernel.pid)
        began = time.perf_counter()
        os.kill(kernel.pid, number)
        if number == signal.SIGKILL:
            return float("nan"), until_gone(family)
        with contextlib.suppress(RuntimeError):  # the KeyboardInterrupt
            finish()
        return time.perf_counter() - began, until_gone(ranks)


def main() -> None:
    args = options(__doc__, repeat=5)
    about, rows, slowest = machine(), [], {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        with Kernel(folder) as kernel:
            kernel.run(SETUP)
            for what in FAULTS:
                limit, own = (LIMIT, LIMIT) if what == "misses a collective" else (60, SLEEP)
                times, left = [], []
                for _ in range(args.repeat):
                    times.append(kernel.value(f"seconds({what!r}, {limit})") - own)
                    left.append(until_gone(descendants(kernel.pid)))
                rows.append((f"a rank {what}", middle(times), middle(left)))
                slowest[f"a rank {what}: the cell answers"] = median(times)
        for what, number in (("is interrupted", signal.SIGINT), ("is killed", signal.SIGKILL)):
            pairs = [stopped(folder, number) for _ in range(args.repeat)]
            answers = "-" if number == signal.SIGKILL else middle([answer for answer, _ in pairs])
            rows.append((f"the kernel {what}", answers, middle([left for _, left in pairs])))
            slowest[f"the kernel {what}: nothing is left"] = median(left for _, left in pairs)
    show(
        f"4 ranks; medians of {args.repeat}. Seconds after the fault; for a missed collective, after the time limit. "
        f"{about}.",
        table(["", "the cell answers, s", "nothing is left, s later"], rows),
        targets(*((what, seconds, 3 if "left" in what else 2, "s") for what, seconds in slowest.items())),
    )


if __name__ == "__main__":
    main()
