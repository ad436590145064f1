"""The exercise of notebook 00: ranks that share work."""

from collections.abc import Callable
from unittest import mock

import torch
import torch.distributed as dist

from ..machine import pick
from ..ranks.traffic import Traffic
from .compare import kind
from .exercise import exercise, patched


def shared_sum(n):
    """The sum of the whole numbers below n, on every rank; each adds up its share of them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = torch.tensor(sum(range(rank, n, ranks)), device=pick())
    dist.all_reduce(total)
    return total.item()


def added_before(call: Callable[[], object], n: int) -> tuple[float, float]:
    """What this rank and what all have added up before the one all-reduce of `call`.

    0 and n(n - 1)/2 if it has none.
    """
    given: list[torch.Tensor] = []
    all_reduce = dist.all_reduce

    def watched(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        given.append(tensor.clone())
        return all_reduce(tensor, *args, **kwargs)

    with mock.patch.object(dist, "all_reduce", watched):
        call()
    if len(given) != 1 or given[0].numel() != 1:
        return 0, n * (n - 1) // 2
    mine = given[0].item()
    all_reduce(given[0])
    return mine, given[0].item()


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
        alone = several and not parts
        words = "do the ranks bring parts together, by all_reduce or such"
        yield f"shared_sum({n}): {words}", not alone
    mine, brought = added_before(lambda: answer(13), 13)
    all_of_it = several and (mine == brought or mine % 1)  # all, and divided
    yield (
        "how much of the sum for n = 13 this rank adds up by itself",
        "all of it" if all_of_it else "its share",
    )
    yield "what all ranks bring to all_reduce for n = 13, each number added by one of them", brought
    yield "", "The same total on every rank: on 1, 2 and 5 of them."
