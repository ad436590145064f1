"""Exercises of notebook 04, each run on 2, 3 and 4 real ranks: broadcast, a mean over ranks, ring all-reduce."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..ranks.launch import launch
from .exercise import exercise, expect, wrong

TIME_LIMIT = 15.0  # seconds; a deadlock is named by the launch
COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


def broadcast_by_hand(tensor, src):
    """Overwrite `tensor` on every rank with that of rank `src`, with send and recv alone."""
    if dist.get_rank() == src:
        for other in range(dist.get_world_size()):
            if other != src:
                dist.send(tensor, other)
    else:
        dist.recv(tensor, src)


@exercise(
    broadcast_by_hand,
    "Two kinds of ranks, one `if`: the source sends, all others receive.",
    "`dist.recv(tensor, src)` writes what arrives into `tensor`, so there is nothing to return.",
    "The source sends once to every rank but itself: `for other in range(dist.get_world_size())`.",
)
def _broadcast_by_hand(answer):
    for ranks in (2, 3, 4):
        for src in (0, ranks - 1):
            mine = [torch.full((3,), 10.0 + rank) for rank in range(ranks)]
            found = launch(_watched, answer, mine, (src,), ranks=ranks, device="cpu", time_limit=TIME_LIMIT).results
            _no_collective(found)
            for rank, result in enumerate(found):
                expect(f"{ranks} ranks, src={src}: rank {rank}'s tensor", mine[src], result["tensor"])
    return "Right on 2, 3 and 4 ranks. A tree needs as many messages, but the source sends only a few of them."


def mean_over_ranks(losses):
    """The mean of all losses of all ranks, the same float on every rank; ranks may hold different numbers of them."""
    total = torch.tensor([losses.sum(), len(losses)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@exercise(
    mean_over_ranks,
    "The mean of the ranks' means is wrong as soon as one rank has fewer losses than another.",
    "Two numbers have to be added up over all ranks: the sum of the losses, and how many there are.",
    "Put both into one tensor and call `dist.all_reduce` once.",
)
def _mean_over_ranks(answer):
    for ranks in (2, 4):
        mine = [torch.arange(1.0, 4.0 + 3 * rank) for rank in range(ranks)]
        found = launch(_called, answer, mine, ranks=ranks, device="cpu", time_limit=TIME_LIMIT).results
        wanted = torch.cat(mine).double().mean().item()
        for rank, result in enumerate(found):
            expect(f"{ranks} ranks with {[len(m) for m in mine]} losses: rank {rank}'s mean", wanted, result, tol=1e-4)
    return "One all-reduce of two numbers, and every rank knows the true mean."


def ring_all_reduce(tensor):
    """Overwrite `tensor` on every rank with the sum over all ranks; every rank only talks to its two neighbours."""
    rank, p = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(p)  # views: writing into a chunk writes into the tensor
    for step in range(2 * (p - 1)):
        leaving, target = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]
        arriving = torch.empty_like(target)
        sending = dist.isend(leaving, (rank + 1) % p)
        dist.recv(arriving, (rank - 1) % p)
        sending.wait()
        if step < p - 1:  # reduce-scatter: add
            target += arriving
        else:  # all-gather: the sums go round
            target.copy_(arriving)


@exercise(
    ring_all_reduce,
    "Cut the tensor with `tensor.tensor_split(p)`: p views, also when the length cannot be divided by p.",
    "If all ranks call `dist.send` first, all wait for ever. `dist.isend` returns at once; `dist.recv` next; then "
    "`.wait()` on what isend gave back.",
    "In step s, rank r sends chunk (r - s - 1) % p to the right and receives chunk (r - s - 2) % p from the left.",
    "In the first p - 1 steps what arrives is added to the chunk, in the other p - 1 steps it is copied over it.",
)
def _ring_all_reduce(answer):
    for ranks, length in ((2, 12), (3, 12), (4, 12), (3, 10), (4, 1001)):
        mine = [torch.arange(float(length)) + 100 * rank for rank in range(ranks)]
        found = launch(_watched, answer, mine, ranks=ranks, device="cpu", time_limit=TIME_LIMIT).results
        where = f"{ranks} ranks, {length} numbers"
        _no_collective(found)
        for rank, result in enumerate(found):
            expect(f"{where}: rank {rank}'s tensor", sum(mine), result["tensor"], tol=1e-3)
        for rank, result in enumerate(found):
            others = set(result["to"]) - {(rank + 1) % ranks, (rank - 1) % ranks}
            if others:
                wrong(f"{where}: in a ring, rank {rank} only sends to a neighbour.", got=f"it sent to {sorted(others)}")
            most = 2 * (ranks - 1) * -(-length // ranks)
            if result["sent"] > most:
                wrong(f"{where}: rank {rank} sends more than 2(p - 1)/p of the tensor.",
                      expected=f"at most {most} numbers", got=f"{result['sent']} numbers")  # fmt: skip
    return "The sum is right on 2, 3 and 4 ranks, and no rank sends more than 2(p - 1)/p of its tensor."


def _called(answer, mine):
    """On a rank: the learner's function with this rank's argument."""
    return answer(mine[dist.get_rank()])


def _watched(answer, mine, more=()):
    """On a rank: call the learner's function, count what it sends, and note the collectives it calls."""
    tensor = mine[dist.get_rank()]
    seen = {"sent": 0, "to": [], "collectives": []}

    def counted(function):
        def send(tensor, dst=None, *args, **kwargs):
            to = dst if dst is not None else kwargs.get("group_dst")
            seen["sent"] += tensor.numel()
            seen["to"].append(to)
            return function(tensor, dst, *args, **kwargs)

        return send

    def noted(name, function):
        def call(*args, **kwargs):
            seen["collectives"].append(name)
            return function(*args, **kwargs)

        return call

    for name in ("send", "isend"):
        replacement = counted(getattr(dist, name))
        for module in (dist, dist.distributed_c10d):  # P2POp compares with the second one
            setattr(module, name, replacement)
    for name in COLLECTIVES:
        setattr(dist, name, noted(name, getattr(dist, name)))
    answer(tensor, *more)
    return {"tensor": tensor, **seen}


def _no_collective(found):
    for result in found:
        if result["collectives"]:
            wrong("Write it with send and recv; it calls a ready-made collective.",
                  expected="dist.send, dist.recv, dist.isend", got=f"dist.{result['collectives'][0]}")  # fmt: skip
