"""What checks on real ranks share: where the answer runs, for how long, and how its results come home."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map, tree_map_only

from ..machine import pick
from ..ranks.launch import launch
from .old import expect, wrong
from .old_compare import difference

ELSEWHERE = 30.0  # seconds that libraries of an accelerator may take to start, on top of the limit


def on_ranks(work: Callable, answer: Callable, *args: Any, ranks: int, seconds: float) -> list[Any]:
    """`work(answer, *args)` on each rank; the results by rank, with their tensors on the CPU.

    The ranks run on the accelerators where each gets its own, else on the CPU, and tensors in `args` go there first.
    """
    limit = seconds if pick(ranks=ranks).type == "cpu" else seconds + ELSEWHERE
    return launch(_there_and_back, work, answer, args, ranks=ranks, time_limit=limit).results


def apart(work: Callable, answer: Callable, *args: Any, seconds: float) -> Any:
    """`work(answer, *args)` in one process beside the notebook, on the CPU: plain Python that may never end."""
    one = {"ranks": 1, "device": "cpu", "init_group": False}
    return launch(_there_and_back, work, answer, args, time_limit=seconds, **one).results[0]


def _there_and_back(work: Callable, answer: Callable, args: tuple) -> Any:
    here = pick()
    return home(work(answer, *tree_map_only(torch.Tensor, lambda tensor: tensor.to(here), args)))


def home(value: Any) -> Any:
    """Tensors on the CPU, and numbers of numpy as Python's own; in lists and dicts, too."""

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().cpu()
        return value.item() if isinstance(value, np.generic) else value

    return tree_map(one, value)


def same(what: str, expected: Any, got: Any, *, tol: float = 0.0) -> None:
    """Like `expect`; of a tensor too large to print, the number that is furthest off is shown."""
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor) and expected.numel() > 12:
        found = difference(expected, got, tol)
        if found.startswith(("off by", "it holds nan")):
            off = (expected.double() - got.double()).abs().nan_to_num(torch.inf)
            at = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
            wrong(f"{what}: {found}.", expected=f"{expected[at]:.6g} at {list(at)}", got=f"{got[at]:.6g} at {list(at)}")
    expect(what, expected, got, tol=tol)


def everywhere(results: list[Any], wanted: str) -> None:
    """End the check where some ranks returned something and others nothing."""
    nothing = [rank for rank, result in enumerate(results) if result is None]
    if 0 < len(nothing) < len(results):
        wrong(f"Rank {nothing[0]} returned nothing, and every rank is to return its result.",
              expected=f"{wanted} on every rank", got=f"None on rank{'s' * (len(nothing) > 1)} "
              + ", ".join(map(str, nothing)))
