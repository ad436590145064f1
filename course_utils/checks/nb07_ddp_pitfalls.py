"""Exercises of notebook 07: runs to repair, each looked at by its symptom on real ranks."""

import contextlib
import io
import pkgutil
import tempfile
from collections.abc import Iterator, Mapping
from pickle import UnpicklingError
from time import sleep
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils._pytree import tree_map_only

from ..lessons.models import mlp
from ..machine import pick
from .exercise import exercise, patched
from .instruments import (
    Steps,
    batch,
    equal_everywhere,
    everyones,
    in_steps,
    returned,
    trained,
    weights,
)


def train_uneven(batches):
    """Train on this list of batches, longer on some ranks; return the trained network."""
    model = DDP(mlp().to(pick()))
    optimizer = SGD(model.parameters(), lr=0.1)
    with model.join():
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.module


@exercise(train_uneven, ranks=(3,), seconds=10)  # a right answer takes less than one
def _(answer):
    # two ranks have most: if they part in their last steps, that is seen
    for counts in ((2, 5, 5), (4, 1, 2)):
        lists = [[batch(10 * rank + i) for i in range(count)] for rank, count in enumerate(counts)]
        with Steps() as steps:
            network = answer([*lists[dist.get_rank()]])
        where = f"{', '.join(map(str, counts))} batches on the ranks"
        yield f"{where}: what it returns", returned(network)
        yield f"{where}: equal weights on all ranks before each step", steps.equal()
        end = weights(network)
        yield f"{where}: equal weights on all ranks at the end", equal_everywhere(end)
        # gradients are divided by all ranks, as with `join`, or by those that have a batch
        ways = [trained(in_steps(lists), by=by) for by in (dist.get_world_size(), 0)]
        as_asked = any(torch.allclose(end, way, rtol=0, atol=1e-5) for way in ways)
        words = "SGD's steps on each batch once, whole and in order, and on no others"
        yield f"{where}: what gives these weights", words if as_asked else "other steps"
    yield (
        "",
        "Every batch counted once, nobody waited for ever, and the weights were equal before every "
        "step.",
    )


def train_and_save(batches, path):
    """Train, save the network's state dict at `path`, and return what every rank loads from it."""
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


# where `torch.save` and `torch.load` open a file, and where that one reads, by whatever name
WRITER = "torch.serialization._open_zipfile_writer"
READER = "torch.serialization._open_zipfile_reader"
LOAD = "torch.serialization._load"
real_writer, real_reader, real_load = map(pkgutil.resolve_name, (WRITER, READER, LOAD))


class Files:
    """Stands for torch's files: counts each `save`, and keeps what `load` gave.

    Writing begins a second after the call and takes half of one: who does not wait for the writer,
    or only sleeps, which takes no time here, loads what an earlier run has left, or a part. What is
    loaded is a little off, by the last bit of each number, so that it is known from what was saved.
    """

    def __init__(self) -> None:
        self.saves = 0
        self.loaded: list[Any] = []

    @contextlib.contextmanager
    def writer(self, file: Any) -> Iterator[Any]:
        self.saves += 1
        written = io.BytesIO()
        with real_writer(written) as archive:
            yield archive
        sleep(1)
        with contextlib.ExitStack() as stack:
            target = file
            if not hasattr(file, "write"):
                target = stack.enter_context(open(file, "wb"))
            target.write(written.getvalue()[:1000])
            target.flush()
            sleep(0.5)
            target.write(written.getvalue()[1000:])

    def reader(self, file: Any) -> Any:
        try:
            return real_reader(file)
        except RuntimeError as error:
            raise RuntimeError("this rank read a file that was not written to its end") from error

    def load(self, *given: Any, **options: Any) -> Any:
        loaded = real_load(*given, **options)
        loaded = tree_map_only(torch.Tensor, lambda t: t.nextafter(torch.ones_like(t)), loaded)
        self.loaded.append(loaded)
        return loaded


def _numbers(state: Mapping) -> torch.Tensor:
    return torch.cat([tensor.cpu().flatten() for tensor in state.values()])


nobody_waits = patched(train_and_save, "torch.distributed.barrier")


@exercise(
    train_and_save,
    ranks=(3,),
    seconds=10,
    mistakes={"this is what an earlier run left; wait until the file is written": nobody_waits},
)
def _(answer):
    with tempfile.TemporaryDirectory() as folder:
        torch.save(mlp().state_dict(), f"{folder}/model.pt")  # left by an earlier run
        path = everyones(f"{folder}/model.pt")[0]
        files = Files()
        with (
            mock.patch(WRITER, files.writer),
            mock.patch(READER, files.reader),
            mock.patch(LOAD, files.load),
            mock.patch("time.sleep"),
        ):
            loaded = answer([batch(10 * dist.get_rank() + i) for i in range(2)], path)
        yield "what it returns", returned(loaded, Mapping, "a state dict")
        yield "how many times the ranks save, together", sum(everyones(files.saves))
        saved = None
        with contextlib.suppress(UnpicklingError):
            saved = torch.load(path, map_location=pick())
        words = "does `torch.load` take the file with weights_only=True, its default"
        yield words, saved is not None
        yield "what is in the file", saved
        yield "how many ranks load", sum(everyones(len(files.loaded) > 0))
        loaded = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to(pick()), loaded)
        yield "what it returns, which is to be what was saved", loaded
        from_file = any(torch.equal(_numbers(loaded), _numbers(each)) for each in files.loaded)
        yield "does it return what `torch.load` gave", from_file
    yield "", "One rank wrote the file, and all ranks loaded the weights that were just trained."
