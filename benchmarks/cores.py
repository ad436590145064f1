"""Several TPU cores (virtual ones, without a TPU): every kind of use again and again, then the time a step takes.

Needs the PyTorch/XLA environment: `.venv-xla/bin/python benchmarks/cores.py`. A run that fails is printed as it fails,
and makes the exit status 1.
"""

from __future__ import annotations

import sys
import time

from bench import machine, median, middle, options, show, table, targets
from core_cases import CASES, batches, setup
from spmd_cases import SPMD_CASES

from course_utils import RankError, xla

CORES = (2, 4, 8)
STEPS = 60


def timed_steps() -> tuple[float, list[float]]:
    """(seconds of the first step, seconds of each later one), the loss read in every step."""
    import torch.nn.functional as F
    import torch_xla.core.xla_model as xm

    core, _, model, optimizer = setup()
    seconds = []
    for x, y in batches(core, STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        loss.item()
        seconds.append(time.perf_counter() - began)
    return seconds[0], seconds[3:]


def stress(names: list[str], runs: int) -> tuple[list[list[object]], int]:
    """Rows of (kind of use, runs that passed by number of cores), and how many failed."""
    rows, failed = [], 0
    for name in names:
        case, spmd = (CASES | SPMD_CASES)[name], name in SPMD_CASES
        row: list[object] = [name]
        for cores in CORES:
            passed, took = 0, []
            for _ in range(runs):
                try:
                    took.append(xla.launch(case, cores=cores, spmd=spmd, time_limit=60, show=False).seconds)
                    passed += 1
                except RankError as error:
                    print(f"{name} on {cores} cores: {error}", file=sys.stderr, flush=True)
            failed += runs - passed
            row.append(f"{passed}/{runs}, {median(took):.2f} s")
        rows.append(row)
        print(*row, sep=" | ", file=sys.stderr, flush=True)
    return rows, failed


def main() -> None:
    args = options(__doc__, repeat=30)
    names = [*CASES][:1] + [*SPMD_CASES][:1] if args.quick else [*CASES, *SPMD_CASES]
    rows, failed = stress(names, args.repeat)
    steps = []
    for cores in CORES:
        results = [xla.launch(timed_steps, cores=cores).results for _ in range(1 if args.quick else 5)]
        first = median(one[0][0] for one in results)
        later = [second * 1000 for one in results for second in one[0][1]]
        steps.append((cores, f"{first * 1000:.0f}", middle(later), median(later)))
    show(
        machine(),
        f"Runs that passed, of {args.repeat} each, and the median of their seconds, launch included:",
        table(["kind of use", *(f"{cores} cores" for cores in CORES)], rows),
        "Time of a step, ms, the loss read in each; the first one compiles:",
        table(["virtual cores", "first step", "later steps"], [step[:3] for step in steps]),
        targets(("failed runs", failed, 0, ""), ("a step on 8 virtual cores", steps[-1][3], 25, "ms")),
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
