"""Exercises of notebook 15, by what XLA compiled, ran and read in the notebook's own process: a TPU belongs to one."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import cross_entropy, pad

from ..errors import CourseError
from ..lessons import models
from ..machine import plural
from ..xla import Counters, counters, tolerance
from .compare import AtMost, kind
from .exercise import exercise
from .probes import batch

fresh = itertools.count(
    1
)  # a width that no program of this process has, so that every compile is counted


def counted(call: Callable, *args: Any) -> tuple[Any, Counters]:
    """What it returns, and what happened in it and in the `sync` at its end."""
    import torch_xla

    torch_xla.sync()
    before = counters()
    result = call(*args)
    torch_xla.sync()
    if min(ran := counters() - before) < 0:
        raise CourseError(
            "your function cleared torch_xla's counts, which are checked here: leave `clear_all` out."
        )
    return result, ran


def remove_recompiles(lines, table):
    ids = torch.zeros(len(lines), 64, dtype=torch.int64)
    real = torch.zeros(len(lines), 64, 1)
    for row, line in enumerate(lines):  # on the CPU, where a new shape costs nothing
        ids[row, : len(line)] = line
        real[row, : len(line)] = 1
    ids, real = ids.to(table.device), real.to(table.device)
    return (table[ids] * real).sum(1) / real.sum(1)


@exercise(
    remove_recompiles,
    here=True,
    mistakes={
        "the places that were filled up count in the mean, as if they were character 0": lambda lines, table: (
            table[
                torch.stack([pad(line, (0, 64 - len(line))) for line in lines]).to(table.device)
            ].mean(1)
        ),
        "the sums are divided by 64, not by the number of characters": lambda lines, table: (
            remove_recompiles(lines, table)
            * torch.tensor([[len(line) / 64] for line in lines]).to(table.device)
        ),
        "character 0 is left out, as if all its places had been filled up": lambda lines, table: (
            remove_recompiles([line[line != 0] for line in lines], table)
        ),
    },
)
def _(answer: Callable) -> Iterator[tuple]:
    import torch_xla

    generator, compiles = torch.Generator().manual_seed(0), 0
    vectors, more = torch.randn(40, 24, generator=generator), next(fresh)
    for call in range(8):  # the longest line is another one in each
        lengths = torch.randperm(62 - 2 * call, generator=generator)[:11] + 2
        lines = [
            torch.randint(40, (n,), generator=generator) for n in [*lengths.tolist(), 64 - 2 * call]
        ]
        table = pad(vectors, (0, more)).to(torch_xla.device())
        means, ran = counted(answer, lines, table)
        where, compiles = f"call {call + 1}", compiles + ran.compiles
        yield f"{where}: what it returns", kind(means)
        yield f"{where}: the device of the means", means.device.type
        yield (
            f"{where}: the means, in the first 24 columns",
            means.detach().cpu().float()[:, :24],
            tolerance(),
        )
        yield (
            f"{where}: the lines and the table afterwards, which were not to change",
            [lines, table.cpu()[:, :24]],
        )
        yield f"{where}: whether a program ran on the XLA device", ran.executions != 0
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


@exercise(
    read_once,
    here=True,
    mistakes={
        "several steps wait in one graph, which is another program for each number of steps": lambda step, batches: (
            torch.stack([step(x, y).detach() for x, y in batches]).tolist()
        ),
    },
)
def _(answer: Callable) -> Iterator[tuple]:
    import torch_xla

    for steps in (6, 1, 4):
        model = models.mlp(24).to(torch_xla.device())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, y, model=model, optimizer=optimizer):
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        batches = [
            tuple(tensor.to(torch_xla.device()) for tensor in batch(number, 16))
            for number in range(steps)
        ]
        losses, ran = counted(answer, step, batches)
        where = plural(steps, "step")
        yield f"{where}: the losses", losses, tolerance()
        yield (
            f"{where}: losses that are tensors, not floats",
            sum(isinstance(loss, torch.Tensor) for loss in losses),
        )
        yield f"{where}: the batches that are still in the list", len(batches)
        yield f"{where}: downloads", AtMost(ran.downloads, 1)
        yield f"{where}: steps that are a program of their own", min(ran.executions, steps)
        yield (
            f"{where}: programs, one a step and one that collects",
            AtMost(ran.executions, steps + 1),
        )
    yield "", "One program a step, and one download."
