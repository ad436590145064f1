"""What the check of runs that survive does on the ranks: train, note every step, and kill one in a step or a save."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ..errors import RankError
from ..ranks.launch import launch

RANKS, EPOCHS, EACH = 2, 3, 5  # EACH: steps in an epoch
LIMIT = 60.0  # seconds for a start that takes one


def _rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.rand(40, 6, generator=generator), torch.randint(3, (40,), generator=generator))


def parts(notes: Path, kill: dict[str, Any]) -> tuple:
    """Model, optimizer, sampler, loader of this rank; each step is noted, and one may be the last."""
    rank, noted = dist.get_rank(), {}
    torch.manual_seed(100 + rank)
    dataset = _rows()
    sampler = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, len(dataset) // RANKS // EACH, sampler=sampler, generator=torch.Generator())
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    file = (notes / f"rank{rank}.jsonl").open("a", buffering=1)
    count = itertools.count(1)

    def flat(tensors: list) -> list[float]:
        return [number for tensor in tensors if tensor is not None for number in tensor.detach().flatten().tolist()]

    def forward(module: nn.Module, inputs: tuple) -> None:
        if torch.is_grad_enabled():
            noted.update(batch=flat(inputs), random=torch.get_rng_state().sum(dtype=torch.int64).item())

    def before(*_: Any) -> None:
        if not noted:  # get_state_dict fills an optimizer's state by an empty step
            return
        moments = [optimizer.state[p].get("momentum_buffer") for p in model.parameters()]
        noted.update(weights=flat(list(model.parameters())), moments=flat(moments))
        if next(count) == kill.get("step") and rank == kill["rank"]:
            die(notes, "in a step")

    def after(*_: Any) -> None:
        if noted:
            print(json.dumps(noted | {"after": flat(list(model.parameters()))}), file=file)
            noted.clear()

    model.register_forward_pre_hook(forward)
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return model, optimizer, sampler, loader


def die(notes: Path, where: str) -> None:
    """End this process as a machine without power does."""
    (notes / "killed").write_text(where)
    os.kill(os.getpid(), signal.SIGKILL)


def start(answer: Callable, folder: Path, notes: Path, kill: dict[str, Any]) -> None:
    """The answer on this rank; `kill`: in which step, in which save."""
    save, files = torch.save, itertools.count(1)

    def half(thing: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(file, io.BytesIO) or next(files) != kill.get("save"):  # pickling a tensor saves to memory, too
            save(thing, file, *args, **kwargs)
            return
        save(thing, whole := io.BytesIO(), *args, **kwargs)
        with file if hasattr(file, "write") else open(file, "wb") as stream:
            stream.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            stream.flush()
            die(notes, "in a save")

    torch.set_num_threads(1)
    torch.save = torch.serialization.save = half
    answer(*parts(notes, kill), EPOCHS, folder)


def run(answer: Callable, folder: Path, notes: Path, **kill: int) -> tuple[list[list[dict]], RankError | None]:
    """What each rank noted, and the error that was no kill of ours."""
    notes.mkdir()
    folder.mkdir(exist_ok=True)
    error = None
    try:
        launch(start, answer, folder, notes, kill, ranks=RANKS, device="cpu", time_limit=LIMIT)
    except RankError as found:
        error = None if (notes / "killed").exists() else found
    files = [notes / f"rank{rank}.jsonl" for rank in range(RANKS)]
    texts = [file.read_text() if file.exists() else "" for file in files]
    return [[json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()] for text in texts], error


@functools.cache
def batches(rank: int) -> list[list[float]]:
    """What this rank is to train on, step by step."""
    x, found = _rows().tensors[0], []
    sampler = DistributedSampler(x, RANKS, rank, seed=1)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        found += [x[rows].flatten().tolist() for rows in torch.tensor(list(sampler)).split(len(x) // RANKS // EACH)]
    return found
