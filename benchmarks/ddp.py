"""One function, two starters: DDP's step rate through `launch` from a Jupyter kernel and through `torchrun`."""

from __future__ import annotations

import shutil
import tempfile

from bench import Kernel, machine, median, middle, options, show, table, targets

FUNCTION = """
import time
import torch
import torch.distributed as dist
from course_utils import report, span
from course_utils.lessons import models
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

def train(steps, width):
    torch.manual_seed(dist.get_rank())
    x, y = torch.rand(64, 64), torch.randint(0, 10, (64,))
    model = DistributedDataParallel(models.mlp(width))
    optimizer = torch.optim.AdamW(model.parameters())
    for n in range(-20, steps):
        if n == 0:
            dist.barrier()
            began = time.perf_counter()
        with span("forward"):
            loss = cross_entropy(model(x), y)
        with span("backward"):
            loss.backward()
        with span("step"):
            optimizer.step()
            optimizer.zero_grad()
        if n >= 0:
            report(step=n, loss=loss)
    dist.barrier()
    return steps / (time.perf_counter() - began)
"""

SCRIPT = (
    FUNCTION
    + """
if __name__ == "__main__":
    import sys
    dist.init_process_group("gloo")
    rate = train(int(sys.argv[1]), int(sys.argv[2]))
    if dist.get_rank() == 0:
        open("rate", "w").write(str(rate))
    dist.destroy_process_group()
"""
)

CELL = (
    FUNCTION
    + """
import subprocess, sys
from pathlib import Path
from course_utils import launch, warm_up
warm_up()

def with_launch(ranks, steps, width):
    return launch(train, steps, width, ranks=ranks, device="cpu").results[0]

def with_torchrun(ranks, steps, width):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    rate = Path("rate")
    rate.unlink(missing_ok=True)
    done = subprocess.run([*command, "script.py", str(steps), str(width)], capture_output=True, text=True)
    if not rate.exists():  # not the exit code: gloo's threads now and then abort a worker that has finished
        raise RuntimeError(done.stderr[-3000:])
    return float(rate.read_text())
"""
)

WAYS = ("with_launch", "with_torchrun")


def main() -> None:
    args = options(__doc__, repeat=7)
    seconds, width = (0.5, 64) if args.quick else (4.0, 256)
    counts = (2,) if args.quick else (2, 4)
    rates: dict[tuple[int, str], list[float]] = {(ranks, way): [] for ranks in counts for way in WAYS}
    about = machine()
    folder = tempfile.mkdtemp(prefix="bench-")
    try:
        with open(f"{folder}/script.py", "w") as file:
            file.write(SCRIPT)
        with Kernel(folder) as kernel:
            kernel.run(CELL)
            steps = {n: max(50, int(seconds * kernel.value(f"with_launch({n}, 100, {width})"))) for n in counts}
            for turn in range(args.repeat):
                for ranks in counts:
                    for way in WAYS[:: 1 if turn % 2 else -1]:
                        rates[ranks, way].append(kernel.value(f"{way}({ranks}, {steps[ranks]}, {width})"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows, checks = [], []
    for ranks in counts:
        ours, theirs = rates[ranks, "with_launch"], rates[ranks, "with_torchrun"]
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        rows.append((f"{ranks} ranks", middle(ours), middle(theirs), middle(ratios)))
        checks.append((f"step rate lost to torchrun, {ranks} ranks", 100 * (1 - median(ratios)), 2, "%"))
    show(
        f"Medians of {args.repeat} interleaved pairs of about {seconds:g} s (lower to upper quartile). {about}.",
        table(["", "`launch`, steps/s", "`torchrun`, steps/s", "ratio, pair by pair"], rows),
        targets(*checks),
    )


if __name__ == "__main__":
    main()
