"""How soon a cell answers when a rank fails, and how soon nothing of the launch is left."""

import contextlib
import math
import os
import signal
import tempfile
import time

import psutil
from bench import Kernel, machine, middle, options, table, tree

SETUP = """
import os, signal, time, torch, torch.distributed as dist
from course_utils import RankError, launch, warm_up
warm_up()

def fault(what):
    if what == "waits": dist.recv(torch.ones(1), (dist.get_rank() + 1) % 4)
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
    try:
        launch(fault, what, ranks=4, device="cpu", time_limit=limit)
    except RankError:
        return time.perf_counter() - began

launch(dist.get_rank, ranks=4, device="cpu")
"""
# What happens to rank 1, and the seconds that belong to the fault itself.
FAULTS = {"raises": 0.3, "is killed": 0.3, "leaves by os._exit": 0.3, "misses a collective": 2.0}

# Signals to the kernel, and what the ranks do then.
SIGNALS = [
    ("interrupted", signal.SIGINT, "sleeps"),
    ("interrupted, and ranks wait in recv", signal.SIGINT, "waits"),
    ("killed", signal.SIGKILL, "sleeps"),
]


def ranks_of(kernel: Kernel) -> list[psutil.Process]:
    """The ranks: children of the kernel's children."""
    return [
        process
        for child in psutil.Process(kernel.pid).children()
        for process in child.children(recursive=True)
    ]


def until_gone(processes: list[psutil.Process]) -> float:
    """Seconds until all these processes have ended."""
    began = time.perf_counter()
    while any(is_alive(process) for process in processes):
        time.sleep(0.005)
    return time.perf_counter() - began


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stopped(folder: str, number: signal.Signals, what: str) -> tuple[float, float]:
    """A signal to the kernel in mid-run: seconds until the cell answers, and from then until no
    process is left.
    """
    with Kernel(folder) as kernel:
        kernel.value(code=SETUP)
        finish = kernel.begin(f"launch(fault, {what!r}, ranks=4, device='cpu')")
        while len(ranks_of(kernel)) < 4:
            time.sleep(0.02)
        time.sleep(1.0)
        left = tree(kernel.pid) if number == signal.SIGKILL else ranks_of(kernel)
        began = time.perf_counter()
        os.kill(kernel.pid, number)
        if number == signal.SIGKILL:
            return math.nan, until_gone(left)
        with contextlib.suppress(RuntimeError):  # the KeyboardInterrupt
            finish()
        return time.perf_counter() - began, until_gone(left)


def main() -> None:
    args = options(__doc__, repeat=5)
    print(f"4 ranks; medians (quartiles) of {args.repeat}; seconds after the fault. {machine()}\n")
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        with Kernel(folder) as kernel:
            kernel.value(code=SETUP)
            for what, own in FAULTS.items():
                limit = own if what == "misses a collective" else 600
                answers = []
                left = []
                for _ in range(args.repeat):
                    answers.append(kernel.value(f"seconds({what!r}, {limit})") - own)
                    left.append(until_gone(ranks_of(kernel)))
                rows.append((f"a rank {what}", middle(answers), middle(left)))
        for row, number, what in SIGNALS:
            runs = [stopped(folder, number, what) for _ in range(args.repeat)]
            answers, left = zip(*runs, strict=True)
            answered = "-" if math.isnan(answers[0]) else middle(answers)
            rows.append((f"the kernel is {row}", answered, middle(left)))
    print(table(["", "the cell answers, s", "nothing is left, s later"], rows))


if __name__ == "__main__":
    main()
