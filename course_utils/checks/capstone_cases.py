"""What the capstone's checks run around an answer on every rank."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from .pitfall_cases import Batch, Seen, all_weights

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
    rows = [step for step in rows if step != [-1]]  # the step before the first, on zeros
    return {"steps": rows, "itself": [row for step in rows for row in step if dataset.by[row] == 1]}


def trained(answer: Callable, batches: list[list[Batch]]) -> dict[str, Any]:
    network = answer(list(batches[dist.get_rank()]))
    kept: Tensor | None = all_weights(network) if isinstance(network, nn.Module) else None
    return {"end": kept, "kind": type(network).__name__}
