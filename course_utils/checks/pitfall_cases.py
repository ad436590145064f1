"""What the checks of notebook 06 run around an answer on every rank, and what they compare its outcome with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import Dataset

from ..lessons.models import mlp
from .exercise import wrong

TOLERANCE = 1e-5
Batch = tuple[Tensor, Tensor]  # images (n, 64), digits (n,)


def make_batch(seed: int, rows: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 64, generator=generator), torch.randint(10, (rows,), generator=generator)


def all_weights(network: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def train(network: nn.Module, steps: Iterable[Callable[[], Tensor]], lr: float) -> Tensor:
    """The weights after plain SGD in this one process on losses that are computed step by step."""
    optimizer = SGD(network.parameters(), lr=lr)
    for loss in steps:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return all_weights(network)


def same_weights(weights: list[Tensor]) -> None:
    for rank, other in enumerate(weights[1:], 1):
        if (apart := float((other - weights[0]).abs().max())) > TOLERANCE:
            wrong(f"Ranks 0 and {rank} ended with different weights.",
                  expected="the same weights on every rank", got=f"{apart:.2g} apart")  # fmt: skip
    if float((weights[0] - all_weights(mlp())).abs().max()) == 0:
        wrong("Nothing was trained.", expected="weights that moved", got="the weights it began with")


class Watched(Dataset):
    """Random rows that remember in which order they were read."""

    def __init__(self, rows: int) -> None:
        self.rows, self.read = rows, []

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Batch:
        self.read.append(int(row))
        return torch.full((64,), row / self.rows), torch.tensor(row % 10)


def rows_read(answer: Callable, rows: int, epochs: int) -> list[list[int]]:
    dataset = Watched(rows)
    answer(dataset, epochs)
    each = max(1, len(dataset.read) // epochs)
    return [dataset.read[i : i + each] for i in range(0, len(dataset.read), each)]


def after_uneven(answer: Callable, counts: list[int]) -> tuple[int, Tensor]:
    taken = 0

    def stream() -> Iterator[Batch]:
        nonlocal taken
        for i in range(counts[dist.get_rank()]):
            taken += 1
            yield make_batch(10 * dist.get_rank() + i)

    return taken if (network := answer(stream())) is None else (taken, all_weights(network))


def step_in_pieces(answer: Callable, pieces: list[list[Batch]]) -> tuple[int, Tensor]:
    model = DDP(mlp())
    reduced = []
    model.register_comm_hook(None, lambda group, bucket: (reduced.append(1), allreduce_hook(group, bucket))[1])
    answer(model, SGD(model.parameters(), lr=0.5), pieces[dist.get_rank()])
    return len(reduced), all_weights(model.module)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.body = nn.Linear(8, 8)
        self.heads = nn.ModuleDict({"a": nn.Linear(8, 1), "b": nn.Linear(8, 1)})
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)

    def forward(self, x: Tensor, head: str) -> Tensor:
        return self.heads[head](torch.tanh(self.body(x)))


def after_two_heads(answer: Callable, batches: list[list[tuple]]) -> Tensor | None:
    network = answer(TwoHeads(), batches[dist.get_rank()])
    return None if network is None else all_weights(network)


def after_saving(answer: Callable, batches: list[list[Batch]], path: str) -> tuple[int, Any]:
    writes, save = 0, torch.save

    def slowly(*args: Any, **kwargs: Any) -> None:
        nonlocal writes
        writes += 1
        time.sleep(0.3)  # a busy disk: who does not wait for the file meets the old one
        save(*args, **kwargs)

    torch.save = slowly
    try:
        loaded = answer(batches[dist.get_rank()], path)
    finally:
        torch.save = save  # pickling a tensor uses it, too
    return writes, loaded
