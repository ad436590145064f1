"""The capstone's functions to mend that run on ranks: who reads the rows, and what becomes of a broken batch."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ..lessons import cases
from ..lessons.models import mlp
from ..machine import pick
from ..ranks.spans import span
from .old import exercise, expect, wrong
from .on_ranks import on_ranks
from .pitfall_cases import (
    TOLERANCE,
    Batch,
    Seen,
    make_batch,
    returned,
    same_weights,
    the_network_came_back,
    train,
)

LIMIT, SHORT = 20.0, 4.0  # seconds; the second where a hang is what the sick function shows
ROWS = 256


class Read(Dataset):
    """Rows whose every pixel says which row they are, and a note of who read each: 1, the thread that trains."""

    def __init__(self) -> None:
        self.trains = os.getpid(), threading.get_ident()
        self.by = torch.zeros(ROWS, dtype=torch.int8, device="cpu").share_memory_()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Batch:
        self.by[row] = 1 if (os.getpid(), threading.get_ident()) == self.trains else 2
        return torch.full((64,), (row + 1) / ROWS, device="cpu"), torch.tensor(row % 10, device="cpu")


def who_read(answer: Callable, steps: int) -> dict[str, Any]:
    """The rows of each step, and those that the thread that trains has read itself."""
    dataset = Read()
    with Seen() as seen:
        answer(dataset, steps)
    rows = [[round(float(pixel) * ROWS) - 1 for pixel in x[:, 0]] for x, _ in seen.forwards]
    rows = [step for step in rows if set(step) != {-1}]  # the step before the first, on zeros
    return {"steps": rows, "itself": [row for step in rows for row in step if dataset.by[row] == 1]}


def trained(answer: Callable, batches: list[list[Batch]]) -> dict[str, Any]:
    return returned(answer(list(batches[dist.get_rank()])))


# -- B -----------------------------------------------------------------------------------------------------------------


def train_archive(dataset, steps):
    """Train for some steps on rows that take long to read."""
    model, optimizer = cases.replica()
    batches = iter(DataLoader(dataset, 16, sampler=DistributedSampler(dataset), num_workers=2))
    for _ in range(steps):
        with span("data"):
            x, y = next(batches)
        cases.step(model, optimizer, x, y)


@exercise(
    train_archive,
    "While a rank reads, it does not compute. Who else could read the next batch meanwhile?",
    "`DataLoader(…, num_workers=2)` starts two processes that read ahead (notebook 02).",
)
def _train_archive(answer: Callable) -> str:
    steps, ranks = 4, 2
    results = on_ranks(who_read, answer, steps, ranks=ranks, seconds=LIMIT)
    for rank, result in enumerate(results):
        expect(f"steps that rank {rank} trained", steps, len(result["steps"]))
        if result["itself"]:
            wrong(f"Rank {rank} read row {result['itself'][0]} in the thread that trains, which cannot compute "
                  "meanwhile.", expected="rows read by somebody else, ahead of time",
                  got=f"{len(result['itself'])} rows read by the thread that trains")
    for step in range(steps):
        rows = [set(result["steps"][step]) for result in results]
        if both := rows[0] & rows[1]:
            wrong(f"In step {step} both ranks train on row {min(both)}.", expected="other rows on every rank",
                  got=f"{len(both)} rows that both have")
    return f"{ranks} ranks, {steps} steps: every row was read by another process than the one that trains."


# -- G -----------------------------------------------------------------------------------------------------------------


def train_noisy(batches):
    """Train on this rank's batches, and leave out those that are broken; the trained network."""
    model = DDP(mlp().to(pick()))
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        loss = cross_entropy(model(x), y)
        whole = loss.isfinite().float()
        dist.all_reduce(whole, dist.ReduceOp.MIN)  # all ranks decide alike
        if not whole:
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.module


@exercise(
    train_noisy,
    "One rank leaves out a backward, and DDP's all-reduce is in there. Who has to know that a batch is broken?",
    "One all-reduce with ReduceOp.MIN of \"my loss is finite\": all ranks go on, or all leave the step out.",
)
def _train_noisy(answer: Callable) -> str:
    ranks, broken = 3, {(1, 1), (1, 3), (2, 3)}  # (rank, step)
    batches = [[make_batch(10 * rank + step) for step in range(5)] for rank in range(ranks)]
    for rank, step in broken:
        batches[rank][step][0][3] = math.nan
    results = on_ranks(trained, answer, batches, ranks=ranks, seconds=SHORT)
    ends = the_network_came_back(results, "return model.module")
    for rank, end in enumerate(ends):
        if not end.isfinite().all():
            wrong(f"A broken batch got into the weights of rank {rank}.", expected="finite weights", got="nan")
    same_weights("At the end", ends)
    if not any(torch.allclose(ends[0], way, rtol=0, atol=TOLERANCE) for way in _ways(batches, broken)):
        wrong("The weights are not those of a training that leaves out the broken batches, and nothing else.",
              expected="steps 0, 2 and 4 with the batches of all ranks", got="other weights")
    return "Batches broken on one rank, and on two: nobody waits, equal and finite weights on every rank."


def _ways(batches: list, broken: set) -> list[torch.Tensor]:
    """The weights when steps with a broken batch are left out, and when the other ranks' batches count, in two ways."""
    ends = []
    for way in ("left out", "zeros", "mean"):
        network, steps = mlp(), []
        for step in range(len(batches[0])):
            whole = [rows[step] for rank, rows in enumerate(batches) if (rank, step) not in broken]
            if len(whole) == len(batches) or way != "left out":
                over = len(whole) if way == "mean" else len(batches)
                steps.append(lambda whole=whole, over=over, network=network:
                             sum(cross_entropy(network(x), y) for x, y in whole) / over)
        ends.append(train(network, steps, lr=0.1))
    return ends
