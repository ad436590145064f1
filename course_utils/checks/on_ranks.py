"""What checks on real ranks share: where the answer runs, for how long, and what is said when it does not end."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map, tree_map_only

from ..ground.errors import CourseError, RankError
from ..machine.devices import pick
from ..ranks.launch import launch
from .compare import difference
from .exercise import expect, wrong

SIGABRT = " (SIGABRT: compiled code gave up)"
ELSEWHERE = 30.0  # seconds that libraries of an accelerator may take to start, on top of the limit


def on_ranks(work: Callable, answer: Callable, *args: Any, ranks: int, seconds: float) -> list[Any]:
    """`work(answer, *args)` on each rank; the results by rank, with their tensors on the CPU.

    The ranks run on the accelerators where each gets its own, else on the CPU, and tensors in `args` go there first.
    """
    limit = seconds if pick(ranks=ranks).type == "cpu" else seconds + ELSEWHERE
    return _results(_there_and_back, work, answer, args, ranks=ranks, time_limit=limit)


def apart(work: Callable, answer: Callable, *args: Any, seconds: float) -> Any:
    """`work(answer, *args)` in one process beside the notebook, on the CPU: plain Python that may never end."""
    return _results(_there_and_back, work, answer, args, ranks=1, time_limit=seconds, device="cpu", init_group=False)[0]


def _results(*args: Any, **options: Any) -> list[Any]:
    try:
        return launch(*args, **options).results
    except RankError as error:
        raise CourseError(in_words(error)) from None


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


def in_words(error: RankError) -> str:
    """What happened on the ranks, said of the check: it has no `time_limit` and leaves no `error` behind."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", error.said)  # torch prints some errors in bold
    text = re.sub(r"had not finished after the time limit of (\S+) s", r"had not finished after \1 s", said)
    if re.search(r"waits? in i?(send|recv)\b", text):
        text = text.replace("a collective needs every rank.", "a message needs both its sender and its receiver.")
    if SIGABRT in text:
        said = [line for output in error.run.output for line in output.splitlines() if line.strip()]
        words = next((line.rpartition("] ")[2] for line in said if "Check failed" in line), said[-1] if said else "")
        text = text.replace(SIGABRT, f". Its last words: {words[:200]}" if words else "")
        text += "\nA frequent cause: the ranks gave tensors of different sizes to one collective."
    if "gloo" in text:
        text = re.sub(r"\[enforce fail [^\n]*", "gloo has no such message. Is it from a rank to itself?", text)
    if error.run.ranks == 1:
        text = text.replace("rank 0 of 1 ", "It ").replace("rank 0 is here:", "It is here:")
    return text


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
              + ", ".join(map(str, nothing)))  # fmt: skip
