"""What the course's instruments take from a training step: spans, and counting what ranks send."""

from __future__ import annotations

import tempfile

from bench import Kernel, machine, median, middle, options, show, table, targets

CELL = """
import contextlib, time, torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from course_utils import launch, span, warm_up
from course_utils.lessons import models
from course_utils import Traffic
warm_up()

def step(model, optimizer, x, y, part):
    with part("forward"):
        loss = cross_entropy(model(x), y)
    with part("backward"):
        loss.backward()
    with part("step"):
        optimizer.step()
        optimizer.zero_grad()

def turns(repeat, steps):
    "Seconds of `steps` steps, [bare, spans, traffic] for each turn, the ways in changing order."
    torch.manual_seed(dist.get_rank())
    x, y = torch.rand(256, 64), torch.randint(0, 10, (256,))
    model = DistributedDataParallel(models.mlp(512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bare = lambda name: contextlib.nullcontext()
    ways = {"bare": (bare, contextlib.nullcontext), "spans": (span, contextlib.nullcontext), "traffic": (bare, Traffic)}
    times = []
    for turn in range(-1, repeat):
        row = {}
        for way in list(ways)[:: 1 if turn % 2 else -1]:
            part, counting = ways[way]
            with counting():
                dist.barrier()
                began = time.perf_counter()
                for _ in range(steps):
                    step(model, optimizer, x, y, part)
                dist.barrier()
                row[way] = time.perf_counter() - began
        times.append([row[way] for way in ways])
    return times[1:]
"""


def main() -> None:
    args = options(__doc__, repeat=15)
    steps, about = (5 if args.quick else 150), machine()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Kernel(folder) as kernel:
        kernel.run(CELL)
        times = kernel.value(f"launch(turns, {args.repeat}, {steps}, ranks=2, device='cpu').results[0]")
    rows, checks = [("plain torch", middle([1000 * row[0] / steps for row in times]), "1")], []
    for column, what in ((1, "with three spans"), (2, "while `Traffic` counts")):
        ratios = [row[column] / row[0] for row in times]
        rows.append((what, middle([1000 * row[column] / steps for row in times]), middle(ratios)))
        checks.append((f"a step {what}, longer by", 100 * (median(ratios) - 1), 2, "%"))
    show(
        f"A step of DDP on 2 ranks, turns of {steps} steps; medians of {args.repeat} (lower to upper quartile). "
        f"{about}.",
        table(["", "ms a step", "relative, turn by turn"], rows),
        targets(*checks),
    )


if __name__ == "__main__":
    main()
