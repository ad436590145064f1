"""Exercises of notebook 07: runs to repair, each looked at by its symptom on real ranks."""

import io
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pickle import UnpicklingError
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils._pytree import tree_map_only

from ..lessons.models import mlp
from ..machine import pick
from .exercise import exercise
from .probes import Steps, batch, equal_everywhere, everyones, returned, weights


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


@exercise(train_uneven, ranks=(3,), seconds=10)  # at rest a right answer takes less than one
def _(answer: Callable) -> Iterator[tuple]:
    for counts in (
        (2, 4, 4),
        (3, 1, 3),
    ):  # two ranks have most: if they part in their last steps, that is seen
        batches = [
            [batch(10 * rank + i) for i in range(count)] for rank, count in enumerate(counts)
        ]
        with Steps() as steps:
            network = answer([*batches[dist.get_rank()]])
        used = [
            [any(torch.equal(x.cpu(), taken) for taken in steps.inputs) for x, _ in given]
            for given in batches
        ]
        where = f"{', '.join(map(str, counts))} batches on the ranks"
        yield f"{where}: what it returns", returned(network)
        yield f"{where}: which of its own batches it trains on", used.pop(dist.get_rank())
        yield f"{where}: whether it trains on those of other ranks", any(itertools.chain(*used))
        yield f"{where}: equal weights on all ranks before each step", steps.equal()
        yield f"{where}: equal weights on all ranks at the end", equal_everywhere(weights(network))
        yield (
            f"{where}: weights that moved",
            not torch.equal(weights(network).cpu(), weights(mlp())),
        )
    yield (
        "",
        "All batches were used, nobody waited for ever, and the weights were equal in every step.",
    )


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
        self._save, self._load, torch.save, torch.load = (
            torch.save,
            torch.load,
            self.save,
            self.load,
        )
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
        try:
            return self._load(file, *more, **options)
        except (EOFError, OSError, RuntimeError, UnpicklingError) as error:
            raise RuntimeError(
                "this rank read a file that was not there, or not written to its end"
            ) from error


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
