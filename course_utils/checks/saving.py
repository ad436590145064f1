"""One file and many ranks: who wrote, when it was complete, and who read before that."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

from ..lessons.models import mlp
from ..machine import pick
from .old import exercise, expect, wrong
from .old_compare import kind
from .on_ranks import everywhere, on_ranks, same
from .pitfall_cases import TOLERANCE, Batch, make_batch, train

LIMIT = 10.0  # seconds for a run that takes half a second when nobody hangs


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
        results = on_ranks(after_saving, answer, batches, path, ranks=3, seconds=LIMIT)
        writers = [rank for rank, result in enumerate(results) if result["wrote"]]
        if len(writers) != 1:
            wrong("One rank is to write the file with torch.save, and the others are not.",
                  expected="1 writer", got=f"ranks {writers}" if writers else "none")
        left = _the_file(path)
    network = mlp()
    steps = [lambda step=step: cross_entropy(network(torch.cat([x for x, _ in step])), torch.cat([y for _, y in step]))
             for step in zip(*batches, strict=True)]
    train(network, steps, lr=0.1)
    if all(torch.equal(tensor, left.get(name, torch.empty(0))) for name, tensor in mlp().state_dict().items()):
        wrong("Nothing was trained, or the file of the earlier run is still there.",
              expected="trained weights at `path`", got="the weights that training began with")
    _tensors("what is in the file", dict(network.state_dict()), left)
    everywhere([result["loaded"] for result in results], "the loaded state dict")
    written = max(results[writers[0]]["wrote"])
    for rank, result in enumerate(results):
        if result["loaded"] is not None and not result["read"]:
            wrong(f"Rank {rank} did not read the file: what it returned comes from elsewhere.",
                  expected="what torch.load finds at `path`", got="no torch.load of it")
        if result["read"] and result["read"][-1] < written:
            wrong(f"Rank {rank} read the file before rank {writers[0]} had written it to its end.",
                  expected="a torch.load that begins when the file is complete",
                  got=f"one that begins {written - result['read'][-1]:.1f} s too early")
        _tensors(f"what rank {rank} loaded", left, result["loaded"])
    return f"Rank {writers[0]} wrote the file; all 3 ranks loaded the weights that were just trained."


def _the_file(path: str) -> dict[str, torch.Tensor]:
    try:
        left = torch.load(path, map_location="cpu")
    except Exception as error:
        wrong("What was saved cannot be loaded as a state dict.",
              expected="torch.save(model.module.state_dict(), path)",
              got=f"{type(error).__name__} from torch.load(path)")
    if not isinstance(left, Mapping):
        wrong("What was saved is no state dict.", expected="names and tensors", got=kind(left))
    return dict(left)


def _tensors(what: str, expected: dict, got: object) -> None:
    if not isinstance(got, Mapping):
        expect(what, expected, got)
    expect(f"{what}, its names", list(expected), list(got))
    for name, tensor in expected.items():
        same(f"{what}, {name}", tensor, got[name], tol=TOLERANCE)


def after_saving(answer: Callable, batches: list[list[Batch]], path: str) -> dict[str, Any]:
    """What the answer returned, when it had written files beside `path`, and when it read there.

    Writing takes a while, as on a busy disk, and sleeping takes no time: only who waits for the writer reads it all.
    """
    save, load, sleep, wrote, read = torch.save, torch.load, time.sleep, [], []

    def beside(file: Any) -> bool:
        name = getattr(file, "name", file)
        return isinstance(name, str | os.PathLike) and Path(name).resolve().parent == Path(path).resolve().parent

    def slowly(thing: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if not beside(file):  # pickling a tensor uses torch.save, too
            save(thing, file, *args, **kwargs)
            return
        save(thing, whole := io.BytesIO(), *args, **kwargs)
        data = whole.getvalue()
        with contextlib.nullcontext(file) if hasattr(file, "write") else open(file, "wb") as open_file:
            for piece in range(0, len(data), len(data) // 6 + 1):
                open_file.write(data[piece : piece + len(data) // 6 + 1])
                open_file.flush()
                sleep(0.05)
        wrote.append(time.perf_counter())

    def noted(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not beside(file):
            return load(file, *args, **kwargs)
        read.append(time.perf_counter())
        try:
            return load(file, *args, **kwargs)
        except (EOFError, OSError, RuntimeError, ValueError) as error:
            raise RuntimeError(f"the file was read before it was written to its end ({error})") from None

    def nap(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            sleep(seconds)

    torch.save, torch.load, time.sleep = slowly, noted, nap
    try:
        loaded = answer(batches[dist.get_rank()], path)
    finally:
        torch.save, torch.load, time.sleep = save, load, sleep
    return {"loaded": loaded, "wrote": wrote, "read": read}
