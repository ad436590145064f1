"""Notebook 06: five training functions that hang or are wrong without a word, each graded by its symptom on ranks."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler

from ..lessons.models import mlp
from ..ranks.launch import launch
from ..ranks.session import report
from .exercise import exercise, expect, wrong
from .pitfall_cases import (
    TOLERANCE,
    TwoHeads,
    after_saving,
    after_two_heads,
    after_uneven,
    all_weights,
    make_batch,
    rows_read,
    same_weights,
    step_in_pieces,
    train,
)

LIMIT = 6.0  # seconds for a run that takes half a second when nobody hangs
SHORT = 4.0  # the same, where a hang is what the broken function shows


# -- the same order every epoch ----------------------------------------------------------------------------------------


def train_epochs(dataset, epochs):
    """Train on this rank's rows, in a new order every epoch."""
    sampler = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    model = DDP(mlp())
    optimizer = SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        report(step=epoch, loss=loss)


@exercise(
    train_epochs,
    "The sampler shuffles with a generator seeded by `seed + epoch`. Who tells it the epoch?",
    "Call `sampler.set_epoch(epoch)` before the loop over the loader begins.",
)
def _train_epochs(answer: Callable) -> str:
    rows, epochs, ranks = 16, 3, 2
    run = launch(rows_read, answer, rows, epochs, ranks=ranks, device="cpu", time_limit=LIMIT)
    expect("rows that each rank read, epoch by epoch", [[rows // ranks] * epochs] * ranks,
           [[len(order) for order in orders] for orders in run.results])  # fmt: skip
    for epoch in range(epochs):
        read = sorted(row for orders in run.results for row in orders[epoch])
        expect(f"rows that all ranks together read in epoch {epoch}, sorted", list(range(rows)), read)
    for rank, orders in enumerate(run.results):
        for epoch in range(1, epochs):
            if orders[epoch] in orders[:epoch]:
                wrong(f"Rank {rank} reads its rows in the same order again and again.",
                      expected=f"in epoch {epoch} another order than {orders[0]}", got=orders[epoch])  # fmt: skip
    return f"{ranks} ranks read all {rows} rows once an epoch, in {epochs} different orders."


# -- ranks with different numbers of batches ---------------------------------------------------------------------------


def train_uneven(batches):
    """Train on every batch of this rank; ranks have different numbers of them. Return the trained network."""
    model = DDP(mlp())
    optimizer = SGD(model.parameters(), lr=0.1)
    with model.join():
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.module


@exercise(
    train_uneven,
    "A rank that has no batch left calls no backward, so it joins no all-reduce, and the others wait for it.",
    "`with model.join():` around the loop: a rank that is done answers the others' all-reduces with zeros.",
)
def _train_uneven(answer: Callable) -> str:
    counts = [2, 3, 4]
    run = launch(after_uneven, answer, counts, ranks=len(counts), device="cpu", time_limit=SHORT)
    if not isinstance(run.results[0], tuple):
        wrong("The trained network did not come back.", expected="return model.module", got=None)
    expect("batches that each rank trained on", counts, [taken for taken, _ in run.results])
    same_weights([weights for _, weights in run.results])
    return f"{counts} batches on ranks 0, 1, 2: all of them used, nobody waited for ever, equal weights at the end."


# -- one step from several pieces --------------------------------------------------------------------------------------


def train_in_pieces(model, optimizer, pieces):
    """One optimizer step from a list of pieces (x, y) of equal size: the step of one big batch, one all-reduce."""
    optimizer.zero_grad()
    for number, (x, y) in enumerate(pieces, 1):
        with contextlib.nullcontext() if number == len(pieces) else model.no_sync():
            loss = cross_entropy(model(x), y) / len(pieces)
            loss.backward()
    optimizer.step()


@exercise(
    train_in_pieces,
    "Gradients add up over the pieces, and each loss is already a mean. What turns a sum of means into a mean?",
    "`model.no_sync()` leaves the all-reduce out of every backward whose forward ran inside it.",
    "Divide each loss by `len(pieces)`, and put forward and backward of all pieces but the last into `no_sync()`.",
)
def _train_in_pieces(answer: Callable) -> str:
    pieces = [[make_batch(10 * rank + i) for i in range(4)] for rank in range(2)]
    run = launch(step_in_pieces, answer, pieces, ranks=2, device="cpu", time_limit=LIMIT)
    network = mlp()
    x, y = (torch.cat(parts) for parts in zip(*[piece for row in pieces for piece in row], strict=True))
    big = train(network, [lambda: cross_entropy(network(x), y)], lr=0.5)
    start = all_weights(mlp())
    size = float((run.results[0][1] - start).norm() / (big - start).norm())
    if not 0.99 < size < 1.01:
        wrong("The step has not the size of the big batch's step.", expected="1 times its size",
              got=f"{size:.2f} times its size")  # fmt: skip
    for rank, (_, weights) in enumerate(run.results):
        expect(f"weights of rank {rank} after the step", big, weights, tol=TOLERANCE)
    expect("all-reduces that each rank started", [1, 1], [reduced for reduced, _ in run.results])
    return "4 pieces on 2 ranks, 1 all-reduce, and the step of one big batch."


# -- parameters without a gradient -------------------------------------------------------------------------------------


def train_two_heads(network, batches):
    """Train a body with two heads; a batch (x, y, head) uses one of them, "a" or "b". Return the network."""
    model = DDP(network, find_unused_parameters=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y, head in batches:
        optimizer.zero_grad()
        mse_loss(model(x, head), y).backward()
        optimizer.step()
    return network


@exercise(
    train_two_heads,
    "Read the error: DDP waits for the gradient of every parameter, and the other head's never comes.",
    "`DDP(network, find_unused_parameters=True)` looks after each forward which gradients will come.",
)
def _train_two_heads(answer: Callable) -> str:
    heads = ["aab", "abb"]  # by rank, step by step: the ranks do not always agree
    images = [[make_batch(10 * rank + i)[0] for i in range(3)] for rank in range(2)]
    batches = [
        [(x[:, :8], x[:, 8:9], head) for x, head in zip(*pair, strict=True)] for pair in zip(images, heads, strict=True)
    ]
    run = launch(after_two_heads, answer, batches, ranks=2, device="cpu", time_limit=LIMIT)
    if run.results[0] is None:
        wrong("The trained network did not come back.", expected="return network", got=None)
    network = TwoHeads()
    steps = [
        lambda step=step: sum(mse_loss(network(x, head), y) for x, y, head in step) / 2
        for step in zip(*batches, strict=True)
    ]
    alone = train(network, steps, lr=0.1)
    for rank, weights in enumerate(run.results):
        expect(f"weights of rank {rank} after 3 steps, against one process with all the data", alone, weights,
               tol=TOLERANCE)  # fmt: skip
    return f"Heads {heads[0]} on rank 0, {heads[1]} on rank 1: the weights of one process with all the data."


# -- one file, many writers --------------------------------------------------------------------------------------------


def train_and_save(batches, path):
    """Train, save the network's state dict at `path`, and return what every rank then loads from there."""
    model = DDP(mlp())
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()
    return torch.load(path)


@exercise(
    train_and_save,
    "All ranks hold the same weights. How many of them open the file for writing?",
    "Save `if dist.get_rank() == 0:`, and let nobody read before that is done.",
    "`dist.barrier()` after the `if`, on every rank; inside it, rank 0 would wait there alone.",
)
def _train_and_save(answer: Callable) -> str:
    batches = [[make_batch(10 * rank + i) for i in range(2)] for rank in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.pt")
        torch.save(mlp().state_dict(), path)  # left by an earlier run
        run = launch(after_saving, answer, batches, path, ranks=3, device="cpu", time_limit=LIMIT)
        writes = [count for count, _ in run.results]
        if sum(writes) != 1:
            wrong("The file was written by more ranks than one, at the same time, or by none.",
                  expected="1 write in all", got=f"writes by ranks 0, 1, 2: {writes}")  # fmt: skip
        left = torch.load(path)
    network = mlp()
    steps = [lambda step=step: cross_entropy(network(torch.cat([x for x, _ in step])), torch.cat([y for _, y in step]))
             for step in zip(*batches, strict=True)]  # fmt: skip
    train(network, steps, lr=0.1)
    expect("what was left in the file", dict(network.state_dict()), left, tol=TOLERANCE)
    old = mlp().state_dict()
    for rank, (_, loaded) in enumerate(run.results):
        if loaded is not None and all(torch.equal(old[name], loaded.get(name, torch.empty(0))) for name in old):
            wrong(f"Rank {rank} read the file before rank 0 had written it.",
                  expected="the weights that were just trained", got="the weights of an earlier run")  # fmt: skip
        expect(f"what rank {rank} loaded", left, loaded, tol=TOLERANCE)
    return "1 write, by one rank; all 3 ranks loaded the weights that were just trained."
