"""DDP's pitfalls: training functions that hang or are wrong without a word, each graded by its symptom on ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler

from ..lessons.models import mlp
from ..machine import pick
from ..ranks.report import report
from .old import exercise, expect, wrong
from .on_ranks import on_ranks, same
from .pitfall_cases import (
    LEFT_OVER,
    TOLERANCE,
    TwoHeads,
    after_two_heads,
    after_uneven,
    all_weights,
    make_batch,
    rows_read,
    same_weights,
    steps_in_pieces,
    the_network_came_back,
    train,
)

LIMIT = 10.0  # seconds for a run that takes half a second when nobody hangs
SHORT = 4.0  # the same, where a hang is what the broken function shows


# -- the same order every epoch ----------------------------------------------------------------------------------------


def train_epochs(dataset, epochs):
    """Train on this rank's rows, in a new order every epoch."""
    device = pick()
    sampler = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    model = DDP(mlp().to(device))
    optimizer = SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        report(step=epoch, loss=loss)


@exercise(
    train_epochs,
    "The sampler shuffles with a generator seeded by `seed + epoch`. Who tells it the epoch?",
    "Call `sampler.set_epoch(epoch)` before the loop over the loader begins.",
)
def _train_epochs(answer: Callable) -> str:
    rows, ranks = 16, 2
    each = rows // ranks
    for epochs in (3, 2):
        results = on_ranks(rows_read, answer, rows, epochs, ranks=ranks, seconds=LIMIT)
        said = f"number of rows that each rank trained on in {epochs} epochs"
        expect(said, [each * epochs] * ranks, [len(read) for read, _ in results])
        for step, weights in enumerate(zip(*(weights for _, weights in results), strict=False)):
            same_weights(f"Before step {step}", list(weights))
        if torch.equal(results[0][1][0], results[0][1][-1]):
            wrong("Nothing was trained.", expected="weights that move", got="the weights of the start at every step")
        orders = [[read[each * e : each * (e + 1)] for e in range(epochs)] for read, _ in results]
        for epoch in range(epochs):
            read = sorted(row for order in orders for row in order[epoch])
            expect(f"rows that all ranks together read in epoch {epoch}, sorted", list(range(rows)), read)
            for rank, order in enumerate(orders):
                if order[epoch] in order[:epoch]:
                    wrong(f"Rank {rank} reads its rows in epoch {epoch} in the order of an epoch before.",
                          expected=f"another order than {order[epoch]}", got=order[epoch])
    return f"{ranks} ranks read all {rows} rows once an epoch, each time in another order."


# -- ranks with different numbers of batches ---------------------------------------------------------------------------


def train_uneven(batches):
    """Train on this list of batches; ranks have different numbers of them. Return the trained network."""
    model = DDP(mlp().to(pick()))
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
    batches = [[make_batch(10 * rank + i) for i in range(count)] for rank, count in enumerate(counts)]
    results = on_ranks(after_uneven, answer, batches, ranks=len(counts), seconds=SHORT)
    ends = the_network_came_back(results, "return model.module")
    for rank, result in enumerate(results):
        expect(f"which of its {counts[rank]} batches rank {rank} trained on", list(range(counts[rank])), result["used"])
    for step, weights in enumerate(zip(*(result["steps"] for result in results), strict=False)):
        same_weights(f"Before step {step}", list(weights))
    same_weights("At the end", ends)
    if torch.equal(ends[0], all_weights(mlp())):
        wrong("Nothing was trained.", expected="weights that moved", got="the weights it began with")
    return f"{counts} batches on ranks 0, 1, 2: all of them used, nobody waited for ever, equal weights in every step."


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
    steps = [[[make_batch(100 * n + 10 * rank + i) for i in range(n)] for rank in range(2)] for n in (4, 3)]
    results = on_ranks(steps_in_pieces, answer, *steps, ranks=2, seconds=LIMIT)
    network = mlp()
    start = all_weights(network)
    for number, pieces in enumerate(steps):
        where = f"The {'first' if number == 0 else 'second'} step, of {len(pieces[0])} pieces"
        x, y = (torch.cat(parts) for parts in zip(*[piece for row in pieces for piece in row], strict=True))
        big = train(network, [lambda x=x, y=y: cross_entropy(network(x), y)], lr=0.5)
        ours = [result[number][1] for result in results]
        same_weights(f"After {where[0].lower()}{where[1:]}", ours)
        if torch.allclose(ours[0], big - 0.5 * LEFT_OVER, rtol=0, atol=TOLERANCE):
            wrong(f"{where}: gradients from before it are still in it.", expected="optimizer.zero_grad() first",
                  got="a step that also follows older gradients")
        size = float((ours[0] - start).norm() / (big - start).norm())
        if not 0.99 < size < 1.01:
            wrong(f"{where}, has not the size of the big batch's step.", expected="1 times its size",
                  got=f"{size:.2f} times its size")
        same(f"{where}: weights after it", big, ours[0], tol=TOLERANCE)
        expect(f"{where}: all-reduces that each rank started", [1, 1], [result[number][0] for result in results])
        start = big
    return "4 pieces, then 3, on 2 ranks: 1 all-reduce a step, and the step of one big batch."


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
    results = on_ranks(after_two_heads, answer, batches, ranks=2, seconds=LIMIT)
    ends = the_network_came_back(results, "return network")
    network = TwoHeads()
    steps = [
        lambda step=step: sum(mse_loss(network(x, head), y) for x, y, head in step) / 2
        for step in zip(*batches, strict=True)
    ]
    alone = train(network, steps, lr=0.1)
    for rank, weights in enumerate(ends):
        same(f"weights of rank {rank} after 3 steps, against one process with all the data", alone, weights,
             tol=TOLERANCE)
    return f"Heads {heads[0]} on rank 0, {heads[1]} on rank 1: the weights of one process with all the data."
