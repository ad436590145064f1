"""What a live plot costs: training with and without it, on 4 ranks and in a plain loop, in one Jupyter kernel.

On ranks, one long launch takes turns by the clock: bare, reporting, reporting to a plot; a plain loop does the same
run by run. Each turn is compared with its neighbours, which cancels what else the machine is doing. The share of a core
is the CPU time of the kernel's process, beyond a bare turn: receiving and drawing; in the plain loop, which has the
core to itself, the CPU time a step beyond a bare one's (it counts the same however busy the machine is). The last
picture, a PNG, is drawn when training is over and counted by itself.
"""

from __future__ import annotations

import bisect
import shutil
import tempfile

from bench import Kernel, machine, median, middle, options, show, table, targets

RANKS = 4
TURNS = ("bare", "report", "live", "live", "report", "bare")  # there and back: a steady drift cancels

CELL = f"""
import time
import torch
import torch.distributed as dist
from course_utils import LivePlot, launch, live, report, warm_up
from course_utils.lessons import models
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

warm_up()
RANKS, TURNS = {RANKS}, {TURNS}

def turn_of(origin, seconds):
    return TURNS[int((time.perf_counter() - origin) / seconds) % len(TURNS)]

class InTurns(LivePlot):  # draws in its turns only, and notes the kernel's CPU time
    def __init__(self, *names, origin, seconds, **options):
        super().__init__(*names, **options)
        self.origin, self.every, self.used, self.last = origin, seconds, [], 0.0
    def add(self, record):
        if turn_of(self.origin, self.every) == "live":
            super().add(record)
    def tick(self):
        now = time.perf_counter()
        self.used.append((now, time.process_time()))
        left = self.every - (now - self.origin) % self.every
        wait = super().tick() if turn_of(self.origin, self.every) == "live" else left
        return min(left, wait)
    def close(self):
        began = time.process_time()
        super().close()
        self.last = time.process_time() - began

def steps_of(model):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(64, 64, generator=generator), torch.randint(0, 10, (64,), generator=generator)
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()
    return step

def train(origin, seconds, until):
    step, times = steps_of(DistributedDataParallel(models.mlp())), []
    go_on = torch.ones(1)
    while go_on.item():
        for _ in range(20):
            loss = step()
            times.append(time.perf_counter())
            if turn_of(origin, seconds) != "bare":
                report(loss=loss)
        go_on.fill_(float(time.perf_counter() < until))
        dist.all_reduce(go_on, dist.ReduceOp.MIN)
    return times

def on_ranks(turns, seconds):
    origin = time.perf_counter() + 1
    plot = InTurns("loss", "steps/s", origin=origin, seconds=seconds)
    until = origin + turns * seconds
    run = launch(train, origin, seconds, until, ranks=RANKS, device="cpu", live=plot)
    used = [(now - origin, cpu) for now, cpu in plot.used]
    return [now - origin for now in run.results[0]], used, plot.frames, plot.last

def redraw(losses):  # what most notebooks do
    from IPython.display import clear_output, display
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots()
    axes.plot(losses)
    clear_output(wait=True)
    display(figure)
    plt.close(figure)

step = steps_of(models.mlp())
torch.set_num_threads(1)  # with more, what else runs on the machine decides the rate of so small a step

def plain(seconds, kind):
    losses, done = [], 0
    plot = InTurns("loss", "steps/s", origin=0.0, seconds=1.0)
    cpu = time.process_time()
    due = began = time.perf_counter()
    def until():
        while time.perf_counter() < began + seconds:
            yield
    for _ in live(until(), plot) if kind == "live" else until():
        loss = step()
        done, now = done + 1, time.perf_counter()
        if kind == "live":
            plot.update(loss=loss)
        else:
            losses.append(loss)
            if kind == "matplotlib" and now >= due:
                redraw(losses)
                due = time.perf_counter() + 0.25
    cpu = time.process_time() - cpu - plot.last
    return done / (now - began), plot.frames, 1000 * cpu / done
"""


def rates(steps: list[float], used: list[tuple[float, float]], turns: int, seconds: float) -> list[tuple[float, float]]:
    """Steps a second and the kernel's share of a core, by turn; the first tenth of a turn belongs to the one before."""
    found = []
    for turn in range(turns):
        first, last = (bisect.bisect_left(steps, (turn + part) * seconds) for part in (0.1, 1))
        begin, end = (min(bisect.bisect_left(used, (n * seconds, 0.0)), len(used) - 1) for n in (turn, turn + 1))
        share = (used[end][1] - used[begin][1]) / (used[end][0] - used[begin][0])
        found.append(((last - 1 - first) / (steps[last - 1] - steps[first]), share))
    return found


def main() -> None:
    args = options(__doc__, repeat=8)
    seconds = 0.5 if args.quick else 2.0
    turns = args.repeat * len(TURNS)
    about = machine()
    folder = tempfile.mkdtemp(prefix="bench-")
    kinds = ("bare", "live", "matplotlib")
    loops: dict[str, list[tuple[float, int, float]]] = {kind: [] for kind in kinds}
    try:
        with Kernel(folder) as kernel:
            kernel.run(CELL)
            kernel.run(f"on_ranks(3, {seconds})")  # the first use of each imports things
            for kind in kinds:
                kernel.run(f"plain({seconds}, {kind!r})")
            steps, used, frames, last = kernel.value(f"on_ranks({turns}, {seconds})", timeout=turns * seconds + 120)
            for turn in range(2 * args.repeat):
                for kind in kinds[:: 1 if turn % 2 else -1]:
                    loops[kind].append(kernel.value(f"plain({seconds}, {kind!r})"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    by_turn = rates(steps, used, turns, seconds)
    orders = [TURNS[:3], TURNS[3:]] * args.repeat
    halves = [dict(zip(order, by_turn[3 * n : 3 * n + 3], strict=True)) for n, order in enumerate(orders)]

    def ranks_of(kind: str, base: str) -> list[float]:
        return [half[kind][0] / half[base][0] for half in halves]

    def core_of(kind: str, base: str) -> list[float]:
        return [100 * (half[kind][1] - half[base][1]) for half in halves]

    pairs = {kind: list(zip(loops[kind], loops["bare"], strict=True)) for kind in kinds}
    plain = {kind: [one[0] / other[0] for one, other in both] for kind, both in pairs.items()}
    plain_core = {kind: [100 * (1 - other[2] / one[2]) for one, other in both] for kind, both in pairs.items()}
    names = {"bare": "4 ranks", "report": "4 ranks that `report` every step", "live": "the same into a `LivePlot`"}
    rows = []
    for kind, name in names.items():
        speed = [half[kind][0] for half in halves]
        rows.append((name, middle(speed), middle(ranks_of(kind, "bare")), middle(core_of(kind, "bare"))))
    names = {
        "bare": "plain loop",
        "live": "plain loop with `live` and a `LivePlot`",
        "matplotlib": "plain loop, a matplotlib figure every 0.25 s",
    }
    for kind, name in names.items():
        speed = [run[0] for run in loops[kind]]
        rows.append((name, middle(speed), middle(plain[kind]), middle(plain_core[kind])))
    show(
        f"Turns of {seconds:g} s, {len(halves)} of each; medians (lower to upper quartile). {about}.",
        table(["", "steps/s", "relative, turn by turn", "kernel's share of a core, beyond bare, %"], rows),
        f"{frames} frames were drawn from the ranks, {median(run[1] for run in loops['live']):g} in a loop's turn; "
        f"the last picture took {last:.2f} s of CPU.",
        targets(
            ("drawing on 4 ranks, of a core", median(core_of("live", "report")), 2, "%"),
            ("step rate lost to the plot, 4 ranks", 100 * (1 - median(ranks_of("live", "report"))), 2, "%"),
            ("step rate lost to reports and the plot, 4 ranks", 100 * (1 - median(ranks_of("live", "bare"))), 2, "%"),
            ("CPU time lost to the plot, plain loop", median(plain_core["live"]), 2, "%"),
            ("step rate lost to the plot, plain loop", 100 * (1 - median(plain["live"])), 2, "%"),
        ),
    )


if __name__ == "__main__":
    main()
