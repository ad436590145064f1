"""Exercises on one TPU core, graded by what XLA really compiled, ran and read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CourseError
from ..lessons import models
from ..xla.counters import Counters, counters, times
from ..xla.launch import tolerance
from .old import exercise, expect, wrong

LONGEST, LINES, CALLS, MOST = 64, 12, 8, 5
CHARACTERS = 40
STEPS = (6, 4)  # of two runs
Batches = list[tuple[Tensor, Tensor]]

_fresh = itertools.count(25)  # a size that no program of this process has yet, so that every compile is counted


def _device() -> torch.device:
    try:
        import torch_xla
    except ModuleNotFoundError:
        raise CourseError(
            "This exercise runs on torch_xla, which this kernel does not have: choose the kernel PyTorch/XLA."
        ) from None
    return torch_xla.device()


@contextmanager
def _counted(into: list[Counters]) -> Iterator[None]:
    """Appends what happens inside, and in the `sync` at its end."""
    import torch_xla

    torch_xla.sync()
    before = counters()
    yield
    torch_xla.sync()
    into.append(counters() - before)


def remove_recompiles(lines: list[Tensor], table: Tensor) -> Tensor:
    ids = torch.zeros(len(lines), 64, dtype=torch.int64)
    real = torch.zeros(len(lines), 64, 1)
    for row, line in enumerate(lines):  # on the CPU, where a new shape costs nothing
        ids[row, : len(line)] = line
        real[row, : len(line)] = 1
    ids, real = ids.to(table.device), real.to(table.device)
    return (table[ids] * real).sum(1) / real.sum(1)


@exercise(
    remove_recompiles,
    "Do all lines at once: one tensor of shape (lines, 64), made on the CPU, where a new shape costs nothing, then "
    "moved to the device. Not up to the longest line: that is another length in each call.",
    "table[ids] has the shape (lines, 64, width) in every call. But the places that were filled up must not count: "
    "make a second tensor that is 1 where there is a character and 0 elsewhere.",
    "(table[ids] * real[:, :, None]).sum(1) / real.sum(1, keepdim=True): divide by the real length, not by 64.",
)
def _remove_recompiles(answer: Callable[[list[Tensor], Tensor], Tensor]) -> str:
    device, width, total = _device(), next(_fresh), 0
    generator = torch.Generator().manual_seed(width)
    table = torch.randn(CHARACTERS, width, generator=generator).to(device)
    for call in range(CALLS):
        lengths = (torch.randperm(LONGEST - 2 * call - 2, generator=generator)[: LINES - 1] + 2).tolist()
        lengths.append(LONGEST - 2 * call)  # the longest is another one in each call
        lines = [torch.randint(CHARACTERS, (length,), generator=generator) for length in lengths]
        seen: list[Counters] = []
        given = [line.clone() for line in lines], table.clone()  # an answer may change its own
        with _counted(seen):
            got = answer(*given)
        _right_means(got, lines, table)
        total += seen[0].compiles
        if not seen[0].executions or seen[0].downloads:
            wrong("The means are right, but the work is to be done on the XLA device, without reading from it.",
                  expected="a program or more, no download",
                  got=f"{times(seen[0].executions, 'program')}, {times(seen[0].downloads, 'download')}")
        if total > MOST:
            wrong(f"The means are right; too much was compiled: {LINES} lines, with other lengths in each call.",
                  expected=f"at most {MOST} compiles in {CALLS} calls",
                  got=f"{total} compiles in {times(call + 1, 'call')}")
    return f"{times(total, 'compile')} in {CALLS} calls with {CALLS * LINES} lines."


def _right_means(got: Any, lines: list[Tensor], table: Tensor) -> None:
    table = table.cpu()
    rows = [table[line] for line in lines]
    expected = torch.stack([row.mean(0) for row in rows])
    if not isinstance(got, Tensor) or tuple(got.shape) != tuple(expected.shape):
        expect("The means of the lines", expected, got)
    if got.device.type != "xla":
        wrong("The result is to stay on the XLA device.", expected="a tensor on xla", got=f"on {got.device}")
    got = got.detach().cpu().float()
    tol = tolerance()
    if torch.allclose(got, expected, atol=tol, rtol=0):
        return
    filled = [(row.sum(0) + (LONGEST - len(row)) * table[0]) / LONGEST for row in rows]
    shorter = [row.sum(0) / LONGEST for row in rows]
    why = "The means of the lines are not right."
    if torch.allclose(got, torch.stack(filled), atol=tol, rtol=0):
        why = "The places that were filled up count in the mean, as if they were character 0."
    elif torch.allclose(got, torch.stack(shorter), atol=tol, rtol=0):
        why = f"Each sum is divided by {LONGEST}, not by the length of its line."
    line = int((got - expected).abs().amax(1).argmax())
    wrong(why, expected=f"line {line}: {_start(expected[line])}", got=f"line {line}: {_start(got[line])}")


def _start(values: Tensor) -> str:
    return f"[{', '.join(f'{value:.4f}' for value in values[:3].tolist())}, …]"


def read_once(step: Callable[[Tensor, Tensor], Tensor], batches: Batches) -> list[float]:
    import torch_xla

    losses = []
    for x, y in batches:
        losses.append(step(x, y).detach())
        torch_xla.sync()  # one program a step
    return torch.stack(losses).tolist()  # the only read


@exercise(
    read_once,
    "A loss is a lazy tensor. Put it in a list as it is: no .item(), no float(), no print in the loop.",
    "Call torch_xla.sync() after every step. Without it all steps become one program that grows with their number.",
    "After the loop, torch.stack(losses) makes one tensor of them; its .tolist() is the one download.",
)
def _read_once(answer: Callable[[Callable[[Tensor, Tensor], Tensor], Batches], list[float]]) -> str:
    ran = [_read(answer, steps) for steps in STEPS]
    said = zip(STEPS, ran, strict=True)
    return "; ".join(f"{steps} steps: {times(n, 'program')}, one download" for steps, n in said) + "."


def _read(answer: Callable[..., Any], steps: int) -> int:
    """How many programs it ran."""
    device, width = _device(), next(_fresh)
    generator = torch.Generator().manual_seed(width)
    batches = [(torch.rand(16, 64, generator=generator).to(device),
                torch.randint(10, (16,), generator=generator).to(device)) for _ in range(steps)]
    expected = read_once(_stepper(width, device), batches)
    seen: list[Counters] = []
    with _counted(seen):
        got = answer(_stepper(width, device), list(batches))
    if isinstance(got, (list, tuple)) and any(isinstance(loss, Tensor) for loss in got):
        wrong("The losses are to be floats.", expected="a list of floats", got="a list with tensors in it")
    expect(f"The losses of {steps} batches", expected, got, tol=tolerance())
    ran, downloads = seen[0].executions, seen[0].downloads
    if downloads != 1:
        wrong("The losses are right, but they are read one by one.", expected="1 download",
              got=times(downloads, "download"))
    if ran < steps:
        wrong(f"The losses are right, but {steps} steps were not {steps} programs: several steps waited in one graph.",
              expected=f"{steps} programs, or one more", got=times(ran, "program"))
    if ran > steps + 1:
        wrong("The losses are right, but a step took more than one program.",
              expected=f"{steps} programs, or one more", got=times(ran, "program"))
    return ran


def _stepper(width: int, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    model = models.mlp(width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def count_compiles(samples: int, batch: int, bucket: int) -> int:
    sizes = {min(batch, samples - first) for first in range(0, samples, batch)}
    return len({-(-size // bucket) for size in sizes})


# In the last three the bucket does not divide the batch, so a smaller last batch may still need the other size.
EPOCHS = [(100, 32, 1), (100, 32, 8), (128, 32, 1), (100, 32, 32), (20, 32, 1), (100, 31, 16), (33, 16, 4),
          (52, 20, 16), (72, 20, 16), (36, 20, 16)]


@exercise(
    count_compiles,
    "All batches but the last have the same size. How many images are left for the last one, and can it be full?",
    "Fill both sizes up: -(-size // bucket) * bucket. Equal sizes share a program, so count the different ones.",
    "A set keeps each size once: len({…}). And with fewer samples than one batch there is only the last batch.",
)
def _count_compiles(answer: Callable[[int, int, int], int]) -> str:
    for case in EPOCHS:
        counted = _really(*case)
        expect(f"count_compiles{case}, against the compiles just counted", counted, answer(*case))
    return f"Equal to the real count in {len(EPOCHS)} epochs."


def _really(samples: int, batch: int, bucket: int) -> int:
    layer, seen = nn.Linear(4, next(_fresh)).to(_device()), []
    for first in range(0, samples, batch):
        rows = -(-min(batch, samples - first) // bucket) * bucket
        x = torch.zeros(rows, 4).to(_device())
        with _counted(seen):
            kept = layer(x)
        del kept
    return sum(part.compiles for part in seen)
