"""What a live plot takes: training with and without it, on 4 ranks and in a plain loop, in one
Jupyter kernel.

The ways take turns, and each turn is compared with the bare one beside it. The share of a core is
the CPU time of the kernel's process beyond a bare turn's: receiving and drawing. The last picture,
a PNG, is drawn when training is over and counted by itself.
"""

import tempfile

from bench import Kernel, machine, middle, options, table

CELL = """
import time
import torch
import torch.distributed as dist
from course_utils import LivePlot, launch, live, report, warm_up
from course_utils.lessons import models
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

warm_up()
torch.set_num_threads(1)  # with more, other programs decide the rate of so small a step

class Timed(LivePlot):
    last = 0.0  # seconds of CPU for the PNG
    def close(self):
        began = time.process_time()
        super().close()
        self.last = time.process_time() - began

def steps_of(model):
    x, y = torch.rand(64, 64), torch.randint(0, 10, (64,))
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()

def train(seconds, reports):
    steps, go_on, done = steps_of(DistributedDataParallel(models.mlp())), torch.ones(1), 0
    began = time.perf_counter()
    while go_on.item():
        for _ in range(20):
            loss = next(steps)
            if reports:
                report(loss=loss)
        done += 20
        go_on.fill_(float(time.perf_counter() < began + seconds))
        dist.all_reduce(go_on, dist.ReduceOp.MIN)
    return done / (time.perf_counter() - began)

def on_ranks(seconds, way):
    plot = Timed("loss") if way == "live" else None
    cpu = time.process_time()
    rate = launch(train, seconds, way != "bare", ranks=4, device="cpu", live=plot).results[0]
    last = plot.last if plot else 0.0
    return rate, (time.process_time() - cpu - last) / seconds, last

def redraw(losses):  # what most notebooks do
    from IPython.display import clear_output, display
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots()
    axes.plot(losses)
    clear_output(wait=True)
    display(figure)
    plt.close(figure)

def alone(seconds, way):
    steps, losses, done = steps_of(models.mlp()), [], 0
    cpu, plot = time.process_time(), Timed("loss")
    due = began = time.perf_counter()
    def until():
        while time.perf_counter() < began + seconds:
            yield
    for _ in live(until(), plot) if way == "live" else until():
        losses.append(next(steps))
        done += 1
        if way == "live":
            plot.update(loss=losses[-1])
        elif way == "matplotlib" and time.perf_counter() >= due:
            redraw(losses)
            due = time.perf_counter() + 0.25
    wall = time.perf_counter() - began - plot.last
    used = time.process_time() - cpu - plot.last
    return done / wall, used / done, plot.last  # of one core that it has to itself: CPU time a step
"""

ON_RANKS = {
    "bare": "4 ranks",
    "report": "4 ranks that `report` every step",
    "live": "the same into a `LivePlot`",
}
ALONE = {
    "bare": "plain loop",
    "live": "plain loop with `live` and a `LivePlot`",
    "matplotlib": "plain loop, a matplotlib figure every 0.25 s",
}


def main() -> None:
    args = options(__doc__, repeat=12)
    seconds = 0.5 if args.quick else 3.0
    what = f"Turns of {seconds:g} s, {args.repeat} of each; medians (lower to upper quartile)."
    print(f"{what} {machine()}\n")
    rows = []
    last = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Kernel(folder) as kernel:
        kernel.value(code=CELL)
        for function, ways in (("on_ranks", ON_RANKS), ("alone", ALONE)):
            turns = []
            for turn in range(-1, args.repeat):  # the first one imports things
                order = [*ways][:: 1 if turn % 2 else -1]
                call = f"{function}({seconds}, {{!r}})"
                turns.append({way: kernel.value(call.format(way)) for way in order})
            del turns[0]
            for way, name in ways.items():
                rates = [turn[way][0] / turn["bare"][0] for turn in turns]
                if function == "on_ranks":
                    shares = [100 * (turn[way][1] - turn["bare"][1]) for turn in turns]
                else:
                    shares = [100 * (1 - turn["bare"][1] / turn[way][1]) for turn in turns]
                steps = middle(turn[way][0] for turn in turns)
                rows.append([name, steps, middle(rates), middle(shares)])
            last += [turn["live"][2] for turn in turns]
    share = "kernel's share of a core, beyond bare, %"
    print(table(["", "steps/s", "relative, turn by turn", share], rows))
    print(f"\nThe last picture took {middle(last)} s of CPU.")


if __name__ == "__main__":
    main()
