"""What a probe sees of an answer beside its result: messages, steps, what other ranks have."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.data import Dataset

from ..machine import pick
from ..ranks.traffic import Traffic
from .compare import kind


class Messages(Traffic):
    """What the block sends: to which ranks, how many numbers, and which collectives it calls."""

    def __enter__(self) -> Messages:
        self.to: list[int] = []
        self.numbers = 0
        self._send = dist.ProcessGroup.send

        def send(group: Any, tensors: list, to: int, tag: int) -> Any:
            self.to = sorted({*self.to, to})
            self.numbers += sum(tensor.numel() for tensor in tensors)
            return self._send(group, tensors, to, tag)

        # All of send, isend and batch_isend_irecv end here.
        dist.ProcessGroup.send = send  # ty: ignore[invalid-assignment]  # called by position
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        dist.ProcessGroup.send = self._send
        super().__exit__(*error)

    @property
    def collectives(self) -> list[str]:
        return [name for name in self.calls if name not in ("send", "recv", "barrier")]


class Steps:
    """For each forward in the block: what goes into the network that trains, and its weights."""

    def __enter__(self) -> Steps:
        self.inputs: list[torch.Tensor] = []
        self.weights: list[torch.Tensor] = []
        self._depth = 0
        out = register_module_forward_hook(self._out, always_call=True)
        self._hooks = [register_module_forward_pre_hook(self._into), out]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _into(self, module: nn.Module, args: tuple) -> None:
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        if self._depth == 0 and args and trains:
            self.inputs.append(args[0].detach().cpu())
            self.weights.append(weights(module).cpu())
        self._depth += 1

    def _out(self, *_: object) -> None:
        self._depth -= 1

    def equal(self) -> bool:
        """Whether all ranks that take a step begin it with the same weights."""
        steps = itertools.zip_longest(*everyones(self.weights))
        return all(_equal([begun for begun in step if begun is not None]) for step in steps)


def rows_into(network: nn.Module) -> list[int]:
    """Rows that go into the network: 0, and those of each forward from now on."""
    rows = [0]

    def note(_: nn.Module, args: tuple) -> None:
        rows.append(len(args[0]))

    network.register_forward_pre_hook(note)
    return rows


def weights(network: nn.Module) -> torch.Tensor:
    """All parameters in one vector, as they are now."""
    return nn.utils.parameters_to_vector(network.parameters()).detach().clone()


def returned(value: Any, wanted: type = nn.Module, word: str = "a network") -> str | None:
    """What an answer returned where a network, or that, is asked for: a word; None for nothing."""
    if isinstance(value, wanted):
        return word
    return None if value is None else kind(value)


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
    """Images (rows, 64) and digits (rows,) for `mlp`, on this rank's device, drawn from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 64, generator=generator)
    y = torch.randint(10, (rows,), generator=generator)
    return x.to(pick()), y.to(pick())


class Rows(Dataset):
    """Images whose every pixel says which row they are, so that a forward shows what was read."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = torch.full((64,), row / self.rows, device="cpu")
        return image, torch.tensor(row % 10, device="cpu")

    def read(self, inputs: list[torch.Tensor]) -> list[int]:
        """The rows of these batches, in their order."""
        return [round(self.rows * float(x)) for images in inputs for x in images[:, 0]]
