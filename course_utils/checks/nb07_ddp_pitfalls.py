"""Exercises of notebook 07: runs to repair, each looked at by its symptom on real ranks."""

import contextlib
import io
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, DistributedSampler

from ..lessons.models import mlp
from ..machine import pick
from ..ranks.report import report
from ..ranks.traffic import Traffic
from .exercise import exercise
from .probes import Rows, Steps, batch, equal_everywhere, everyones, returned, weights


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


@exercise(train_epochs, ranks=(2, 3))
def _(answer: Callable) -> Iterator[tuple]:
    ranks = dist.get_world_size()
    for each, epochs in ((8, 3), (11, 2)):
        rows = Rows(each * ranks)
        with Steps() as steps:
            answer(rows, epochs)
        read, where = rows.read(steps.inputs), f"{len(rows)} rows, {epochs} epochs"
        yield f"{where}: how many rows this rank trains on", len(read)
        orders = [tuple(read[i : i + each]) for i in range(0, len(read), each)]
        yield f"{where}: the rows that all ranks read in each epoch, sorted", [
            sorted(itertools.chain(*epoch)) for epoch in zip(*everyones(orders), strict=True)]
        yield f"{where}: how many different shares of the rows it has", len({*map(frozenset, orders)})
        yield f"{where}: equal weights on all ranks before each step", steps.equal()
        yield f"{where}: weights that move", not torch.equal(steps.weights[0], steps.weights[-1])
    yield "", "All ranks together read all rows once an epoch, dealt anew each time."


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


@exercise(train_uneven, ranks=(3,), seconds=4)
def _(answer: Callable) -> Iterator[tuple]:
    for counts in ((2, 4, 4), (3, 1, 3)):  # two ranks have most: if they part in their last steps, that is seen
        batches = [[batch(10 * rank + i) for i in range(count)] for rank, count in enumerate(counts)]
        with Steps() as steps:
            network = answer([*batches[dist.get_rank()]])
        used = [[any(torch.equal(x.cpu(), taken) for taken in steps.inputs) for x, _ in given] for given in batches]
        where = f"{', '.join(map(str, counts))} batches on the ranks"
        yield f"{where}: what it returns", returned(network)
        yield f"{where}: which of its own batches it trains on", used.pop(dist.get_rank())
        yield f"{where}: whether it trains on those of other ranks", any(itertools.chain(*used))
        yield f"{where}: equal weights on all ranks before each step", steps.equal()
        yield f"{where}: equal weights on all ranks at the end", equal_everywhere(weights(network))
        yield f"{where}: weights that moved", not torch.equal(weights(network).cpu(), weights(mlp()))
    yield "", "All batches were used, nobody waited for ever, and the weights were equal in every step."


def train_in_pieces(model, optimizer, pieces):
    """One optimizer step from a list of pieces (x, y) of equal size: the step of one big batch, one all-reduce."""
    optimizer.zero_grad()
    for number, (x, y) in enumerate(pieces, 1):
        with contextlib.nullcontext() if number == len(pieces) else model.no_sync():
            (cross_entropy(model(x), y) / len(pieces)).backward()
    optimizer.step()


@exercise(train_in_pieces, ranks=(2, 3))
def _(answer: Callable) -> Iterator[tuple]:
    model = DDP(mlp().to(pick()))
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.01)  # left by an earlier step
    optimizer = SGD(model.parameters(), lr=0.5, momentum=0.9)
    for count, rows in ((4, 8), (3, 5), (1, 8)):
        pieces, start = [batch(100 * count + 10 * dist.get_rank() + i, rows) for i in range(count)], weights(model)
        with Traffic() as traffic:
            answer(model, optimizer, pieces)
        where = f"a step from {count} pieces of {rows} rows"
        yield f"{where}: how far the weights move", (weights(model) - start).norm().item()
        yield f"{where}: the weights after it", weights(model)
        yield f"{where}: how many all-reduces it takes", traffic.calls["all-reduce"]
        yield f"{where}: pieces in the list afterwards", len(pieces)
    yield "", "Steps from 4, 3 and 1 pieces: each is that of one big batch, with one all-reduce."


def train_and_save(batches, path):
    """Train, save the network's state dict at `path`, and return what every rank then loads from there."""
    model = DDP(mlp().to(pick()))
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()
    return torch.load(path, map_location=pick())


class Files:
    """Counts `torch.save` and `torch.load` of files in the block. A file is written a second after the call: who does
    not wait for the writer, or only sleeps, which takes no time here, loads what an earlier run has left."""

    def __enter__(self) -> Self:
        self.saves = self.loads = 0
        self._save, self._load, torch.save, torch.load = torch.save, torch.load, self.save, self.load
        self._sleep, time.sleep = time.sleep, lambda seconds: None
        return self

    def __exit__(self, *error: object) -> None:
        torch.save, torch.load, time.sleep = self._save, self._load, self._sleep

    def save(self, thing: Any, file: Any, *more: Any, **options: Any) -> None:
        if not isinstance(file, io.BytesIO):  # pickling a tensor saves it to memory
            self.saves += 1
            self._sleep(1)
        self._save(thing, file, *more, **options)

    def load(self, file: Any, *more: Any, **options: Any) -> Any:
        self.loads += not isinstance(file, io.BytesIO)
        return self._load(file, *more, **options)


@exercise(train_and_save, ranks=(3,))
def _(answer: Callable) -> Iterator[tuple]:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(mlp().state_dict(), f"{folder}/model.pt")  # left by an earlier run
        path = everyones(f"{folder}/model.pt")[0]
        with Files() as files:
            loaded = answer([batch(10 * dist.get_rank() + i) for i in range(2)], path)
        yield "how many ranks save a file", sum(everyones(files.saves > 0))
        yield "what is in the file", torch.load(path, map_location=pick())
        yield "how many ranks load a file", sum(everyones(files.loads > 0))
        loaded = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to(pick()), loaded)
        yield "what it returns, which is to be what was saved", loaded
    yield "", "One rank wrote the file, and all ranks loaded the weights that were just trained."
