"""Exercises of notebook 15, by what XLA compiles, runs and reads: here, for a TPU has one owner."""

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import pad
from torch.utils._pytree import tree_map_only

from ..errors import CourseError
from ..lessons import models
from ..style import plural
from ..xla import Counters, counters, tolerance
from .compare import AtMost, kind
from .exercise import exercise, patched
from .instruments import batch
from .nb02_one_device import train_step

# a width that no program of this process has, so that every compile is counted
fresh = itertools.count(1)


def counted(call: Callable, *args: Any) -> tuple[Any, Counters]:
    """What it returns, and what happened in it and in the `sync` at its end."""
    import torch_xla

    torch_xla.sync()
    before = counters()
    result = call(*args)
    torch_xla.sync()
    ran = counters() - before
    if min(ran) < 0:
        raise CourseError(
            "your function cleared torch_xla's counts, which are checked here: leave `clear_all` "
            "out."
        )
    return result, ran


def on_host() -> Counter[str]:
    """How often which operation has run on the host so far; `.item()` and the like are there."""
    from torch_xla.debug import metrics

    return Counter({one: metrics.counter_value(one) for one in metrics.executed_fallback_ops()})


def remove_recompiles(lines, table):
    ids = torch.zeros(len(lines), 64, dtype=torch.int64)
    real = torch.zeros(len(lines), 64, 1)
    for row, line in enumerate(lines):  # on the CPU, where a new shape costs nothing
        ids[row, : len(line)] = line
        real[row, : len(line)] = 1
    ids, real = ids.to(table.device), real.to(table.device)
    return (table[ids] * real).sum(1) / real.sum(1)


def filled_up(lines, table):
    ids = torch.stack([pad(line, (0, 64 - len(line))) for line in lines])
    return table[ids.to(table.device)].mean(1)


def by_64(lines, table):
    shares = torch.tensor([[len(line) / 64] for line in lines])
    return remove_recompiles(lines, table) * shares.to(table.device)


def without_0(lines, table):
    return remove_recompiles([line[line != 0] for line in lines], table)


@exercise(
    remove_recompiles,
    here=True,
    seconds=120.0,
    mistakes={
        "the places that were filled up count in the mean, as if they were character 0": filled_up,
        "the sums are divided by 64, not by the number of characters": by_64,
        "character 0 is left out, as if all its places had been filled up": without_0,
    },
)
def _(answer):
    import torch_xla

    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(40, 24, generator=generator)
    more = next(fresh)
    compiles = 0
    for call in range(8):
        longest = 64 - 8 * call  # so that many sizes are needed, if they depend on it
        drawn = torch.randint(2, longest, (11,), generator=generator)
        lengths = [*drawn.tolist(), longest]
        lines = [torch.randint(40, (length,), generator=generator) for length in lengths]
        table = torch.cat([vectors, vectors[:, :1].expand(-1, more)], 1).to(torch_xla.device())
        before = on_host()
        means, ran = counted(answer, lines, table)
        host = on_host() - before
        compiles += ran.compiles
        where = f"call {call + 1}"
        yield f"{where}: what it returns", kind(means)
        yield f"{where}: the device of the means", means.device.type
        right = means.shape == (12, 24 + more)
        shape = "(lines, width)" if right else f"{tuple(means.shape)}, not {(12, 24 + more)}"
        yield f"{where}: the shape of the means", shape
        columns = means.detach().cpu().float()
        yield f"{where}: the means, in the first 24 columns", columns[:, :24], tolerance(5e-5)
        apart = (columns[:, 24:] - columns[:, :1]).abs().max().item()
        words = "how far the other columns are from the first, which the table repeats there"
        yield f"{where}: {words}", apart, tolerance(5e-5)
        given = [lines, table.cpu()[:, :24]]
        yield f"{where}: the lines and the table afterwards, which were not to change", given
        yield f"{where}: whether a program ran on the XLA device", ran.executions != 0
        yield f"{where}: operations that ran on the host, and read from the device", [*host]
        yield f"{where}: downloads from the XLA device", AtMost(ran.downloads, 0)
        yield f"programs compiled until {where}, each call with other lengths", AtMost(compiles, 5)
    yield "", f"{plural(compiles, 'compile')} in 8 calls with 96 lines."


def read_once(step, batches):
    import torch_xla

    losses = []
    for x, y in batches:
        losses.append(step(x, y).detach())
        torch_xla.sync()  # one program a step
    return torch.stack(losses).tolist()  # the only read


in_one_graph = patched(read_once, "torch_xla.sync")


@exercise(
    read_once,
    here=True,
    seconds=120.0,
    mistakes={
        "several steps wait in one graph, which is another program for each number of "
        "steps": in_one_graph,
    },
)
def _(answer):
    import torch_xla

    for steps in (9, 1, 4):
        model = models.mlp(24).to(torch_xla.device())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = partial(train_step, model, optimizer)
        batches = [
            tuple(tensor.to(torch_xla.device()) for tensor in batch(number, 16))
            for number in range(steps)
        ]
        losses, ran = counted(answer, step, batches)
        where = plural(steps, "step")
        yield f"{where}: the losses", losses, tolerance()
        tensors = [loss for loss in losses if isinstance(loss, torch.Tensor)]
        yield f"{where}: losses that are tensors, not floats", len(tensors)
        left = tree_map_only(torch.Tensor, torch.Tensor.cpu, batches)
        yield f"{where}: the batches afterwards, which were not to change", left
        yield f"{where}: downloads", AtMost(ran.downloads, 1)
        yield f"{where}: programs, at least one a step", min(ran.executions, steps)
        programs = AtMost(ran.executions, steps + 1)
        yield f"{where}: programs, one a step and one that collects", programs
    yield "", "One program a step, and one download."
