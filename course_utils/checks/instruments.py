"""What a probe sees of an answer beside its result: sends, steps, what other ranks have."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from operator import index
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import Dataset

from ..lessons.models import mlp
from ..machine import pick
from ..style import plural
from .compare import kind


@contextlib.contextmanager
def sends() -> Iterator[Counter[int]]:
    """How many numbers this rank sends in the block, by the rank that they go to."""
    numbers: Counter[int] = Counter()
    send = dist.ProcessGroup.send

    def counted(group: Any, tensors: list, to: int, tag: int) -> Any:
        numbers[to] += sum(tensor.numel() for tensor in tensors)
        return send(group, tensors, to, tag)

    # All of send, isend and batch_isend_irecv end here.
    with mock.patch.object(dist.ProcessGroup, "send", counted):
        yield numbers


class Steps:
    """For each forward of an `mlp` that trains, in the block: what goes in, and its weights."""

    def __enter__(self) -> Steps:
        self.inputs: list[torch.Tensor] = []
        self.weights: list[torch.Tensor] = []
        forward = nn.Sequential.forward

        def noted(network: nn.Sequential, input: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                self.inputs.append(input.detach().cpu())
                self.weights.append(weights(network).cpu())
            return forward(network, input)

        self._noting = mock.patch.object(nn.Sequential, "forward", noted)
        self._noting.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._noting.stop()

    def equal(self) -> bool:
        """Whether all ranks that take a step begin it with the same weights."""
        steps = itertools.zip_longest(*everyones(self.weights))
        return all(_equal([begun for begun in step if begun is not None]) for step in steps)


def rows_into(network: nn.Sequential) -> list[int]:
    """Rows that go into the network: 0, and those of each forward from now on."""
    rows = [0]

    def note(_: nn.Module, args: tuple) -> None:
        rows.append(len(args[0]))

    # Its first layer gets them by position, however the network is called.
    network[0].register_forward_pre_hook(note)
    return rows


def weights(network: nn.Module) -> torch.Tensor:
    """All parameters in one vector, as they are now."""
    return nn.utils.parameters_to_vector(network.parameters()).detach().clone()


def in_steps(lists: Iterable[list[tuple]]) -> list[list[tuple]]:
    """The batches of each step, of those ranks that still have one; from the ranks' lists."""
    return [[one for one in step if one] for step in itertools.zip_longest(*lists)]


def trained(steps: Iterable[list[tuple]], *, by: int = 0) -> torch.Tensor:
    """The weights of an `mlp` after a step with each list of batches, in one process.

    The batches' gradients are added and divided by `by`, or by the number of batches.
    """
    network = mlp().to(pick())
    optimizer = SGD(network.parameters(), lr=0.1)
    for batches in steps:
        optimizer.zero_grad()
        losses = torch.stack([cross_entropy(network(x), y) for x, y in batches])
        (losses.sum() / (by or len(batches))).backward()
        optimizer.step()
    return weights(network)


def returned(value: Any, wanted: type = nn.Module, word: str = "a network") -> str | None:
    """What an answer returned where a network, or that, is asked for: a word; None for nothing."""
    if isinstance(value, wanted):
        return word
    return None if value is None else kind(value)


def inside(model: nn.Module) -> dict[str, Any]:
    """What a model holds, which of its parts train, and which parameters do not."""
    return {
        **model.state_dict(),
        "modes": ["train" if part.training else "eval" for part in model.modules()],
        "frozen": [name for name, weight in model.named_parameters() if not weight.requires_grad],
    }


def counts_of_layers(call: str, counts: Any) -> Generator[tuple, None, list[int]]:
    """Yield what is said of an answer's counts of layers, a stage each; the counts, as numbers."""
    found = None if counts is None else kind(counts)
    if hasattr(counts, "__len__") and not isinstance(counts, str | dict | set):
        found = plural(len(counts), "number")
    yield f"{call}: what it returns", found
    counts = [index(count) for count in counts]  # of any type of whole numbers
    yield f"{call}: how many layers they take together", sum(counts)
    empty = [stage for stage, count in enumerate(counts) if count < 1]
    yield f"{call}: those that take no layer, counted from 0", empty
    return counts


def everyones(value: Any) -> list[Any]:
    """This value of every rank, by rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def equal_everywhere(tensor: torch.Tensor) -> bool:
    """Whether all ranks have the same values in it."""
    return _equal(everyones(tensor.cpu()))


def _equal(tensors: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=1e-5) for a, b in itertools.pairwise(tensors))


def batch(seed: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (rows, 64) and digits (rows,) for `mlp`, on this rank's device, drawn from `seed`; the
    norm of their gradient is above 1, where whoever clips clips it.
    """
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.randn(rows, 64, generator=generator)
    y = torch.randint(10, (rows,), generator=generator)
    return x.to(pick()), y.to(pick())


class Rows(Dataset):
    """Images whose every pixel says which row they are, so that a forward shows what was read."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.seen: set[int] = set()  # read by this process

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.add(int(row))
        image = torch.full((64,), row / self.rows, device="cpu")
        return image, torch.tensor(row % 10, device="cpu")

    def read(self, images: torch.Tensor) -> list[int]:
        """The rows of this batch, in their order."""
        return [round(self.rows * float(x)) for x in images[:, 0]]
