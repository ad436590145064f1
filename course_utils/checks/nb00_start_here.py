"""The exercise of notebook 00: ranks that share work."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from ..machine import pick
from ..ranks.traffic import Traffic
from .compare import kind
from .exercise import exercise, patched
from .instruments import everyones


def shared_sum(n):
    """The sum of the whole numbers below n, on every rank; each adds up its share of them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = torch.tensor(sum(range(rank, n, ranks)), device=pick())
    dist.all_reduce(total)
    return total.item()


SENDS = {  # collectives that bring parts together, and which argument is a rank's part
    "all_reduce": 0,
    "reduce": 0,
    "gather": 0,
    "all_gather": 1,
    "all_gather_into_tensor": 1,
    "gather_object": 0,
    "all_gather_object": 1,
}


def added_before(call: Callable[[], object], n: int) -> tuple[float, float]:
    """What this rank and what all have added up before the one collective of `call`.

    0 and n(n - 1)/2 if it has none, or several, or one of something else than a number.
    """
    given: list[Any] = []

    def watched(collective: Callable, place: int, *args: Any, **kwargs: Any) -> object:
        part = [*args, *kwargs.values()][place]
        given.append(part.clone() if torch.is_tensor(part) else part)  # an all-reduce changes it
        return collective(*args, **kwargs)

    with contextlib.ExitStack() as patches:
        for name, place in SENDS.items():
            real = partial(watched, getattr(dist, name), place)
            patches.enter_context(mock.patch.object(dist, name, real))
        call()
    mine = given[0] if len(given) == 1 else None
    if torch.is_tensor(mine) and mine.numel() == 1:
        mine = mine.item()
    if not isinstance(mine, int | float):
        return 0, n * (n - 1) // 2
    return mine, sum(everyones(mine))


one_share = patched(shared_sum, "torch.distributed.all_reduce")


@exercise(
    shared_sum,
    ranks=(1, 2, 5),
    tol=0,
    mistakes={"this is the share of one rank; the shares of all have to be added up": one_share},
)
def _(answer):
    several = dist.get_world_size() > 1
    for n in (10, 5, 3, 2, 1, 0, 999_983):
        with Traffic() as traffic:
            total = answer(n)
        yield f"shared_sum({n})", total
        yield f"shared_sum({n}): what it returns", kind(total)
        parts = {*traffic.calls} - {"barrier", "broadcast", "scatter"}
        alone = several and n > 1 and not parts
        words = "do the ranks bring parts together, by all_reduce or such"
        yield f"shared_sum({n}): {words}", not alone
    mine, brought = added_before(lambda: answer(13), 13)
    all_of_it = several and (mine == brought or mine % 1)  # all, and divided
    yield (
        "how much of the sum for n = 13 this rank adds up by itself",
        "all of it" if all_of_it else "its share",
    )
    yield "what all ranks bring together for n = 13, each number added by one of them", brought
    yield "", "The same total on every rank: on 1, 2 and 5 of them."
