"""What the capstone's checks see of a run on every rank, and what they compare its outcome with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import SGD

from .old import wrong

TOLERANCE = 1e-5
Batch = tuple[Tensor, Tensor]  # images (n, 64), digits (n,)


def make_batch(seed: int, rows: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 64, generator=generator), torch.randint(10, (rows,), generator=generator)


def all_weights(network: nn.Module) -> Tensor:
    """All parameters in one vector, as they are now."""
    return nn.utils.parameters_to_vector(network.parameters()).detach().clone()


def train(network: nn.Module, steps: Iterable[Callable[[], Tensor]], lr: float) -> Tensor:
    """The weights after plain SGD in this one process on losses that are computed step by step."""
    optimizer = SGD(network.parameters(), lr=lr)
    for loss in steps:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return all_weights(network)


def same_weights(when: str, weights: list[Tensor]) -> None:
    for rank, other in enumerate(weights[1:], 1):
        if other.shape != weights[0].shape or not torch.allclose(other, weights[0], rtol=0, atol=TOLERANCE):
            apart = f"{float((other - weights[0]).abs().max()):.2g} apart" if other.shape == weights[0].shape else ""
            wrong(f"{when}, ranks 0 and {rank} have different weights.", expected="the same weights on every rank",
                  got=apart or "networks of different sizes")


class Seen:
    """What goes into the network that trains: (first argument, weights just before), a pair for each forward."""

    def __init__(self) -> None:
        self.forwards: list[tuple[Tensor, Tensor]] = []
        self._depth = 0

    def __enter__(self) -> Self:
        self._hooks = [register_module_forward_pre_hook(self._in),
                       register_module_forward_hook(self._out, always_call=True)]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _in(self, module: nn.Module, args: tuple) -> None:
        if self._depth == 0 and args and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
            self.forwards.append((args[0].detach().cpu(), all_weights(module).cpu()))
        self._depth += 1

    def _out(self, *_: object) -> None:
        self._depth -= 1


def returned(network: Any) -> dict[str, Any]:
    """The weights of what an answer returned, or what that is; `the_network_came_back` reads it."""
    if isinstance(network, nn.Module):
        return {"end": all_weights(network)}
    return {"end": None, "kind": None if network is None else type(network).__name__}


def the_network_came_back(results: list[dict[str, Any]], expected: str) -> list[Tensor]:
    """The weights that each rank returned, or the end of the check."""
    for rank, result in enumerate(results):
        if result["end"] is None:
            wrong(f"Rank {rank} did not return the trained network.", expected=expected,
                  got=f"a value of type {result['kind']}" if result["kind"] else "None")
    return [result["end"] for result in results]
