"""From a cell to a value back from 4 ranks: `launch` and its peers, each in a fresh Jupyter kernel.

*cold* is the first launch of a kernel that has imported torch, *warm* a later one; *DDP* a later one in which the
function builds a DistributedDataParallel model and takes 3 steps of AdamW. Memory is PSS while all ranks wait.
"""

from __future__ import annotations

import glob
import importlib.util
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass

from bench import Kernel, machine, median, memory, options, show, table, targets, until_idle

RANKS = 4

# The first cell of every kernel, and the head of the script that torchrun gets.
FUNCTIONS = f"""
import os, sys, time
import torch
import torch.distributed as dist

RANKS, FOLDER = {RANKS}, {{folder!r}}

def all_reduce():
    x = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(x)
    return x.item()

def ddp():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(RANKS * (RANKS - 1) // 2)

def hold():
    total = all_reduce()
    open(f"{{{{FOLDER}}}}/ready{{{{dist.get_rank()}}}}", "w").close()
    while not os.path.exists(f"{{{{FOLDER}}}}/go"):
        time.sleep(0.01)
    return total

def with_group(function):
    dist.init_process_group("gloo")
    value = function()
    with open(f"{{{{FOLDER}}}}/value{{{{dist.get_rank()}}}}", "w") as file:
        file.write(str(value))
    dist.destroy_process_group()

def values():
    return [float(open(f"{{{{FOLDER}}}}/value{{{{rank}}}}").read()) for rank in range(RANKS)]

def timed(function):
    began = time.perf_counter()
    results = start(function)
    seconds = time.perf_counter() - began
    assert results == [float(RANKS * (RANKS - 1) // 2)] * RANKS, results
    return seconds
"""

OURS = """
from course_utils import launch, warm_up

def start(function):
    return launch(function, ranks=RANKS, device="cpu").results
"""

ACCELERATE = """
import socket
from accelerate import notebook_launcher

def start(function):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    notebook_launcher(with_group, (function,), num_processes=RANKS, use_port=str(port))
    return values()
"""

LIGHTNING = """
import logging
from lightning.fabric import Fabric
logging.getLogger("lightning.fabric").setLevel(logging.ERROR)

def start(function):
    def in_rank(fabric):
        value = function()
        with open(f"{FOLDER}/value{fabric.global_rank}", "w") as file:
            file.write(str(value))
    Fabric(accelerator="cpu", devices=RANKS, strategy="ddp_notebook").launch(in_rank)
    return values()
"""

TORCH = """
import socket
import cloudpickle
import torch.multiprocessing as mp

class ByValue:  # plain pickle cannot carry a function that is defined in a cell
    def __init__(self, function):
        self.function = function
    def __call__(self, *args):
        return self.function(*args)
    def __reduce__(self):
        return cloudpickle.loads, (cloudpickle.dumps(self.function),)

if METHOD == "forkserver":
    mp.set_forkserver_preload(["torch", "cloudpickle"])

def start(function):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    def in_rank(rank):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        with_group(function)
    mp.start_processes(ByValue(in_rank), nprocs=RANKS, start_method=METHOD)
    return values()
"""

TORCHRUN = """
import subprocess

def start(function):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    done = subprocess.run([*command, f"{FOLDER}/script.py", function.__name__], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return values()
"""


@dataclass(frozen=True)
class Way:
    name: str
    cell: str
    package: str = "torch"
    warm: int = 7  # later launches timed in one kernel
    warm_up: bool = False
    forks: bool = False  # forks the kernel itself: not safe after CUDA or a thread pool was used
    server: bool = False  # keeps a process between launches


WAYS = [
    Way("`launch`, after `warm_up()`", OURS, warm_up=True, server=True),
    Way("`launch`", OURS, server=True),
    Way("accelerate `notebook_launcher`", ACCELERATE, "accelerate", forks=True),
    Way("Lightning `ddp_notebook`", LIGHTNING, "lightning", forks=True),
    Way("torch `start_processes`, fork", "METHOD = 'fork'" + TORCH, forks=True),
    Way("torch `start_processes`, forkserver preloading torch", "METHOD = 'forkserver'" + TORCH, server=True),
    Way("torch `start_processes`, spawn with cloudpickle", "METHOD = 'spawn'" + TORCH, warm=1),
    Way("`torchrun` on a written script", TORCHRUN, warm=1),
]


def measure(way: Way, *, quick: bool) -> dict[str, float]:
    """Everything about one way, in one fresh kernel: seconds and MB by name."""
    folder = tempfile.mkdtemp(prefix="bench-")
    functions = FUNCTIONS.format(folder=folder)
    with open(f"{folder}/script.py", "w") as file:
        file.write(f"{functions}\nif __name__ == '__main__':\n    with_group(globals()[sys.argv[1]])\n")
    try:
        with Kernel(folder) as kernel:
            kernel.run(functions + way.cell)
            alone = memory(kernel.pid)
            found = {}
            if way.warm_up:
                kernel.run("warm_up()")
                found["warming"] = until_idle(kernel.pid)
            found["cold"] = kernel.value("timed(all_reduce)")
            found["warm"] = median(kernel.value("timed(all_reduce)") for _ in range(1 if quick else way.warm))
            kernel.run("timed(ddp)")  # the first one may fill caches on disk
            found["ddp"] = median(kernel.value("timed(ddp)") for _ in range(1 if quick else min(way.warm, 3)))
            before = memory(kernel.pid)
            finish = kernel.begin("timed(hold)")
            deadline = time.monotonic() + 60
            while len(glob.glob(f"{folder}/ready*")) < RANKS and time.monotonic() < deadline:
                time.sleep(0.01)
            during = memory(kernel.pid)
            open(f"{folder}/go", "w").close()
            finish()
            return found | {"server": before - alone, "ranks": during - before}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    args = options(__doc__, repeat=3)
    there = [way for way in WAYS if importlib.util.find_spec(way.package)]
    if args.quick:
        there = [way for way in there if way.package == "torch" and way.warm > 1]
    about = machine()
    found: dict[str, list[dict[str, float]]] = {way.name: [] for way in there}
    failures: dict[str, int] = {}
    for turn in range(args.repeat):
        for way in there[turn % len(there) :] + there[: turn % len(there)]:
            try:
                found[way.name].append(measure(way, quick=args.quick))
            except Exception as error:
                failures[way.name] = failures.get(way.name, 0) + 1
                print(f"{way.name}: {str(error)[-2000:] or type(error).__name__}", file=sys.stderr, flush=True)

    def middle(name: str, column: str) -> float:
        return median(row.get(column) for row in found[name])

    best = there[0].name
    rows = []
    for way in WAYS:
        if way not in there:
            rows.append((way.name, *["not measured" if args.quick else "not installed"] * 6))
            continue
        seconds = [f"{middle(way.name, column):.3f}" for column in ("cold", "warm", "ddp")]
        ratio = f"{middle(way.name, 'warm') / middle(best, 'warm'):.1f}"
        server = f"{middle(way.name, 'server'):.0f}" if way.server else "-"
        rows.append((way.name, *seconds, ratio, server, f"{middle(way.name, 'ranks'):.0f}"))
    checks = [
        ("warm launch", middle(best, "warm"), 0.1, "s"),
        ("first launch after `warm_up()`", middle(best, "cold"), 0.3, "s"),
        ("memory that 4 ranks add to the warmed server", middle(best, "ranks"), 200, "MB"),
    ]
    if fork := [middle(way.name, "warm") for way in there if way.forks]:
        checks.append(("warm launch, of the fastest fork-based peer's", middle(best, "warm") / min(fork), 1, "times"))
    if "`torchrun` on a written script" in found:
        slow = middle("`torchrun` on a written script", "warm")
        checks.append(("warm launch, of torchrun's", middle(best, "warm") / slow, 1 / 20, "times"))
    show(
        f"{RANKS} gloo ranks; medians of {args.repeat} kernels each, interleaved. {about}.",
        table(["", "cold, s", "warm, s", "DDP, s", "warm, relative", "server adds, MB", "4 ranks add, MB"], rows),
        f"The server took {middle(best, 'warming'):.1f} s to warm up in the background. Kernels in which a way hung or "
        f"failed, left out above: {', '.join(f'{name}: {count}' for name, count in failures.items()) or 'none'}.",
        targets(*checks),
    )


if __name__ == "__main__":
    main()
