"""The capstone's functions to mend that need no ranks, each graded by what it does, never by how long it takes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from ..lessons.models import mlp
from .old import exercise, expect, wrong
from .pitfall_cases import TOLERANCE, all_weights, make_batch, train

# -- C -----------------------------------------------------------------------------------------------------------------


def cut_layers(layers, ranks):
    """How many layers each rank takes, in the order of the ranks."""
    each, more = divmod(layers, ranks)
    return [each + (rank < more) for rank in range(ranks)]


@exercise(
    cut_layers,
    "What does `layers % ranks` say about 7 layers on 4 ranks?",
    "Give one of the layers that are left over to each of as many ranks, not all of them to the last.",
)
def _cut_layers(answer: Callable[[int, int], list[int]]) -> str:
    for layers, ranks in ((7, 4), (8, 4), (9, 4), (11, 3), (5, 1), (31, 8), (4, 4)):
        call, counts = f"cut_layers({layers}, {ranks})", answer(layers, ranks)
        if counts is None or counts is ...:
            expect(call, cut_layers(layers, ranks), counts)
        try:
            counts = [int(count) for count in counts]
        except (TypeError, ValueError):
            wrong(f"{call}: a number of layers for each rank.", expected=cut_layers(layers, ranks), got=counts)
        if len(counts) != ranks or sum(counts) != layers or min(counts) < 1:
            wrong(f"{call}: each of {ranks} ranks takes one layer at the least, and together they take all {layers}.",
                  expected=f"{ranks} numbers from 1 that add up to {layers}", got=counts)
        best = math.ceil(layers / ranks)
        if max(counts) > best:
            wrong(f"{call}: the fullest rank has {max(counts)} layers, and {best} are enough.",
                  expected=f"{best} layers at the most", got=counts)
    return "No rank has more layers than it must."


# -- D -----------------------------------------------------------------------------------------------------------------


def train_large(model, optimizer, x, y, pieces):
    """One step on the batch x, y, cut into pieces that fit into the memory; the mean loss."""
    losses = []
    optimizer.zero_grad()
    for part, labels in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
        loss = cross_entropy(model(part), labels) * len(part) / len(x)
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    return torch.stack(losses).sum()


@exercise(
    train_large,
    "Gradients of the pieces add up, and the loss of each is a mean over its own rows.",
    "Weigh each piece's loss by its share of the rows, before its backward.",
)
def _train_large(answer: Callable) -> str:
    rows = 50
    x, y = make_batch(0, rows=rows)
    for pieces in (1, 2, 3, 4):
        whole, ours = mlp(), mlp()
        for network in (whole, ours):
            for p in network.parameters():
                p.grad = torch.full_like(p, 0.01)  # of a step before
        loss = train_large(whole, SGD(whole.parameters(), lr=0.5), x, y, 1)
        largest = []
        hook = ours.register_forward_pre_hook(lambda _, args, largest=largest: largest.append(len(args[0])))
        said = answer(ours, SGD(ours.parameters(), lr=0.5), x, y, pieces)
        hook.remove()
        sizes = [len(part) for part in x.chunk(pieces)]
        if not largest or max(largest) > max(sizes):
            wrong(f"{pieces} pieces: more rows than a piece has went through the model at once.",
                  expected=f"{max(sizes)} rows at the most", got=max(largest, default=0))
        start, end, big = (all_weights(network) for network in (mlp(), ours, whole))
        if not torch.allclose(end, big, rtol=0, atol=TOLERANCE):
            size = float((end - start).norm() / (big - start).norm())
            wrong(f"{pieces} pieces, of {', '.join(map(str, sizes))} rows: the step is not that of the whole batch.",
                  expected="1 times as long, that way", got=f"{size:.2f} times as long")
        expect(f"{pieces} pieces: the mean loss", float(loss), said, tol=TOLERANCE)
    return f"{rows} rows in 1, 2, 3 and 4 pieces: the step of the whole batch each time."


# -- F -----------------------------------------------------------------------------------------------------------------


def train_compiled(model, batches, backend):
    """Train on batches of any size; `backend` is called for each program that is made."""
    compiled = torch.compile(model, backend=backend, dynamic=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        loss = cross_entropy(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@exercise(
    train_compiled,
    "A program is made for a shape. What does `dynamic=False` promise, and is it kept?",
    "`dynamic=True` makes one program for any number of rows. Or fill every batch up to one size, with labels of -100.",
)
def _train_compiled(answer: Callable) -> str:
    sizes = (24, 31, 18, 27, 22, 29, 19, 26)
    batches = [make_batch(number, rows) for number, rows in enumerate(sizes)]
    alone, ours = mlp(), mlp()
    expected = train(alone, [lambda x=x, y=y: cross_entropy(alone(x), y) for x, y in batches], lr=0.1)
    made: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: list) -> Callable:
        made.append(1)
        return graph.forward

    torch.compiler.reset()
    try:
        answer(ours, list(batches), backend)
    finally:
        torch.compiler.reset()
    if not made:
        wrong("Nothing was compiled.", expected="torch.compile(…, backend=backend)", got="0 programs")
    if len(made) > 3:
        wrong(f"{len(sizes)} batches of {len(sizes)} sizes: a program for nearly each of them.",
              expected="3 programs at the most", got=f"{len(made)} programs")
    expect("weights after 8 steps, against the model that is not compiled", expected, all_weights(ours),
           tol=TOLERANCE)
    return f"{len(sizes)} sizes: {len(made)} program{'s' * (len(made) > 1)}, and the weights of the eager model."
