"""From a cell to a value back from 4 ranks: `launch` and its peers, each in a fresh Jupyter kernel.

*First* is the first launch of a kernel that has imported torch, *later* the median of the following
ones; *with DDP* a later one in which the function builds a DistributedDataParallel model and takes
3 steps of AdamW; *steps/s* is the rate of 300 such steps. *CPU* and page *faults* are a rank's own,
from its start until it has met the others. Memory is PSS while all ranks wait. The kernels of all
ways take turns. A kernel *hung* when a cell had not ended after a minute; a way
whose kernels all hung has no row.

The second table is about data. *Arguments* is a launch whose ranks meet and read a value of the
notebook: a fork inherits it, and torchrun's script reads it from a file that the cell has written
by `torch.save`. *Results* is one whose ranks meet and return such a value each, into the notebook;
peers take the way over files. Kernels have OMP_NUM_THREADS=1, because a fork after a thread pool
hangs.
"""

import glob
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty

from bench import LIMIT, Kernel, machine, memory, middle, options, table

RANKS = 4
ACCELERATE = "accelerate `notebook_launcher`"

# The first cell of every kernel, and the head of torchrun's script. FOLDER is put before it.
FUNCTIONS = """
import os, resource, socket, sys, time
import torch
import torch.distributed as dist

RANKS = 4
DATA = torch.ones(1)

def all_reduce():
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

def ddp(steps=3, width=8):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(width, width))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(-3, steps):
        if step == 0:
            dist.barrier()
            began = time.perf_counter()
        model(torch.ones(64, width)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    return steps / (time.perf_counter() - began)

def rate():
    return ddp(300, 256)

def cost():
    all_reduce()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return 1000 * (used.ru_utime + used.ru_stime), used.ru_minflt

def read(value):
    return value.sum().item() if isinstance(value, torch.Tensor) else len(value)

def take():
    all_reduce()  # gloo fails where a rank leaves while others still connect
    return read(DATA)

def give():
    all_reduce()
    return torch.ones_like(DATA) if isinstance(DATA, torch.Tensor) else DATA

def hold():
    take()
    open(f"{FOLDER}/ready{dist.get_rank()}", "w").close()
    while not os.path.exists(f"{FOLDER}/go"):
        time.sleep(0.01)

def with_group(function):
    dist.init_process_group("gloo")
    write(dist.get_rank(), function())
    dist.destroy_process_group()

def write(rank, value):
    torch.save(value, f"{FOLDER}/value{rank}")

def values():
    return [torch.load(f"{FOLDER}/value{rank}") for rank in range(RANKS)]

def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])

def seconds(function):
    began = time.perf_counter()
    assert len(start(function)) == RANKS
    return time.perf_counter() - began
"""

SCRIPT = """
DATA = torch.load(f"{FOLDER}/data")
with_group(eval(sys.argv[1]))
"""

DATA = {
    **{f"{size} MB": f"torch.ones({size} * 250_000)" for size in (1, 10, 100, 500)},
    "a million floats": "[float(i) for i in range(1_000_000)]",
    "5,000 tensors": "[torch.ones(3) for _ in range(5_000)]",
}

WAYS = {
    "`launch`, after `warm_up()`": """
from course_utils import launch, warm_up
warm_up()
def start(function):
    return launch(function, ranks=RANKS, device="cpu").results
""",
    ACCELERATE: """
from accelerate import notebook_launcher
def start(function):
    notebook_launcher(with_group, (function,), num_processes=RANKS, use_port=free_port())
    return values()
""",
    "torch `start_processes`, fork": """
import torch.multiprocessing as mp
def in_rank(rank, function, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    with_group(function)
def start(function):
    mp.start_processes(in_rank, (function, free_port()), nprocs=RANKS, start_method="fork")
    return values()
""",
    "`torchrun` on a written script": """
import subprocess
def start(function):
    torch.save(DATA, f"{FOLDER}/data")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={RANKS}", f"{FOLDER}/script.py", function.__name__]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return values()
""",
}


@contextmanager
def prepared(cell: str, first: str = "") -> Iterator[tuple[Kernel, Path]]:
    """A fresh kernel that knows one way, and its folder; the `first` cell comes before torch."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        functions = f"FOLDER = {folder!r}\n{FUNCTIONS}"
        Path(folder, "script.py").write_text(functions + SCRIPT)
        with Kernel(folder) as kernel:
            kernel.value(code=first)
            kernel.value(code=functions + cell)
            if "warm_up" in cell:
                time.sleep(10)  # in which a reader reads the first cells
            yield kernel, Path(folder)


def held(kernel: Kernel, folder: Path) -> float:
    """MB that the ranks add while they wait."""
    before = memory(kernel.pid)
    finish = kernel.begin("start(hold)")
    end = time.monotonic() + LIMIT
    while len(glob.glob(f"{folder}/ready*")) < RANKS and time.monotonic() < end:
        time.sleep(0.01)
    added = memory(kernel.pid) - before
    (folder / "go").touch()
    finish()
    for file in [folder / "go", *folder.glob("ready*")]:
        file.unlink()
    return added


def measure(cell: str, later: int) -> dict[str, float]:
    """One way in one fresh kernel: seconds, steps a second and MB."""
    with prepared(cell) as (kernel, folder):
        found = {"first": kernel.value("seconds(all_reduce)")}
        times = [kernel.value("seconds(all_reduce)") for _ in range(later)]
        found["later"] = statistics.median(times)
        kernel.value("seconds(ddp)")  # the first one may fill caches on disk
        times = [kernel.value("seconds(ddp)") for _ in range(later)]
        found["ddp"] = statistics.median(times)
        found["rate"] = kernel.value("start(rate)[0]")
        found["cpu"], found["faults"] = kernel.value("start(cost)[0]")
        found["memory"] = held(kernel, folder)
        return found


def measure_data(cell: str, names: list[str]) -> Iterator[tuple[str, list[float]]]:
    """One way in one fresh kernel: for each value seconds and MB, of arguments and of results."""
    with prepared(cell, 'import os; os.environ["OMP_NUM_THREADS"] = "1"') as (kernel, folder):
        kernel.value("seconds(take)")
        for name in names:
            kernel.value(code=f"kept = None; DATA = {DATA[name]}")
            arguments = [kernel.value("seconds(take)"), held(kernel, folder)]
            before = memory(kernel.pid)
            seconds = kernel.value("seconds(give)")
            kernel.value(code="kept = start(give); sum(map(read, kept))")
            yield name, [*arguments, seconds, memory(kernel.pid) - before]


def main() -> None:
    args = options(__doc__, repeat=5)
    there = dict(WAYS)
    if not importlib.util.find_spec("accelerate"):
        del there[ACCELERATE]
        print("accelerate is not installed: pip install accelerate\n")
    print(f"{RANKS} gloo ranks; medians (quartiles) of {args.repeat} kernels each. {machine()}\n")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in there}
    for _ in range(args.repeat):
        for name, cell in there.items():
            with suppress(TimeoutError, Empty):  # a peer that forks may stand still for ever
                found[name].append(measure(cell, 1 if args.quick else 5))

    rows = []
    for name, kernels in found.items():
        if kernels:
            measured = [middle(one[what] for one in kernels) for what in kernels[0]]
            rows.append([name, *measured, args.repeat - len(kernels)])
    header = [
        "",
        "first, s",
        "later, s",
        "with DDP, s",
        "steps/s",
        "CPU, ms",
        "faults",
        "ranks add, MB",
    ]
    print(table([*header, "kernels that hung"], rows))

    there.pop(ACCELERATE, None)  # which forks, too
    names = [*DATA][:1] if args.quick else [*DATA]
    data: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(args.repeat):
        for name, cell in there.items():
            with suppress(TimeoutError, Empty):
                for value, values in measure_data(cell, names):
                    data.setdefault((value, name), []).append(values)
    rows = []
    for (value, name), kernels in sorted(data.items(), key=lambda item: names.index(item[0][0])):
        rows.append([value, name, *map(middle, zip(*kernels, strict=True))])
    header = ["", "", "arguments, s", "ranks add, MB", "results, s", "kernel adds, MB"]
    print(f"\nData of one kind; medians (quartiles) as above.\n\n{table(header, rows)}")


if __name__ == "__main__":
    main()
