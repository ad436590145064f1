"""Exercises on ranks and collectives, each run on 2, 3 and 4 real ranks: broadcast, a mean, ring all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..ranks.traffic import Traffic
from .exercise import exercise, expect, wrong
from .on_ranks import everywhere, on_ranks, same

SECONDS = 10.0  # a deadlock ends here, in words


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
def _broadcast_by_hand(answer: Callable) -> str:
    for ranks in (2, 3, 4):
        mine = [_numbers(3, rank) for rank in range(ranks)]
        cases = [[(tensor, src) for src in range(ranks)] for tensor in mine]
        found = on_ranks(_watched, answer, cases, ranks=ranks, seconds=SECONDS)
        _no_collective(found)
        for src in range(ranks):
            for rank in range(ranks):
                expect(f"{ranks} ranks, src={src}: rank {rank}'s tensor", mine[src], found[rank][src]["tensor"])
    return "Right on 2, 3 and 4 ranks. A tree needs as many messages, but the source sends only a few of them."


def mean_over_ranks(losses):
    """The mean of all losses of all ranks, the same float on every rank; ranks may hold different numbers of them."""
    total = torch.stack([losses.sum(), losses.new_tensor(len(losses))])  # where the losses are, as a collective needs
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@exercise(
    mean_over_ranks,
    "The mean of the ranks' means is wrong as soon as one rank has fewer losses than another.",
    "Two numbers have to be added up over all ranks: the sum of the losses, and how many there are.",
    "Put both into one tensor on the device of the losses and call `dist.all_reduce` once.",
)
def _mean_over_ranks(answer: Callable) -> str:
    for ranks in (2, 4):
        mine = [torch.rand(6 - rank, generator=torch.Generator().manual_seed(rank)) ** 3 for rank in range(ranks)]
        found = on_ranks(_called, answer, mine, ranks=ranks, seconds=SECONDS)
        everywhere([said for said, _ in found], "the mean")
        wanted = torch.cat(mine).double().mean().item()
        where = f"{ranks} ranks with {[len(losses) for losses in mine]} losses"
        for rank, (said, after) in enumerate(found):
            expect(f"{where}: rank {rank}'s mean", wanted, said, tol=1e-5)
            expect(f"{where}: rank {rank}'s losses afterwards, which were not to change", mine[rank], after)
    return "Every rank knows the true mean, however many losses each of them has."


def ring_all_reduce(tensor):
    """Overwrite `tensor` on every rank with the sum over all ranks; every rank only talks to its two neighbours."""
    rank, p = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(p)  # views: writing into a chunk writes into the tensor
    for step in range(2 * (p - 1)):
        leaving, target = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]
        arriving = torch.empty_like(target)
        # As one batch: nccl may hold a single send until its receiver is there, and in a ring all would wait.
        sends = dist.P2POp(dist.isend, leaving, (rank + 1) % p)
        receives = dist.P2POp(dist.irecv, arriving, (rank - 1) % p)
        for message in dist.batch_isend_irecv([sends, receives]):
            message.wait()
        if step < p - 1:  # reduce-scatter: add
            target += arriving
        else:  # all-gather: the sums go round
            target.copy_(arriving)


@exercise(
    ring_all_reduce,
    "Cut the tensor with `tensor.tensor_split(p)`: p views, also when the length cannot be divided by p.",
    "If all ranks call `dist.send` first, all wait for ever. `dist.batch_isend_irecv([dist.P2POp(dist.isend, …), "
    "dist.P2POp(dist.irecv, …)])` sends and receives at once; `.wait()` on each thing it gives back.",
    "In step s, rank r sends chunk (r - s - 1) % p to the right and receives chunk (r - s - 2) % p from the left.",
    "In the first p - 1 steps what arrives is added to the chunk, in the other p - 1 steps it is copied over it.",
)
def _ring_all_reduce(answer: Callable) -> str:
    for ranks, lengths in ((2, (12, 7)), (3, (12, 4, 10)), (4, (12, 5, 9, 1001))):
        mine = [[_numbers(length, rank) for length in lengths] for rank in range(ranks)]
        found = on_ranks(_watched, answer, [[(t,) for t in row] for row in mine], ranks=ranks, seconds=SECONDS)
        _no_collective(found)
        for case, length in enumerate(lengths):
            where = f"{ranks} ranks, {length} numbers"
            for rank in range(ranks):
                wanted = torch.stack([row[case] for row in mine]).sum(0)
                same(f"{where}: rank {rank}'s tensor", wanted, found[rank][case]["tensor"], tol=1e-3)
            for rank in range(ranks):
                _round_the_ring(where, rank, ranks, length, found[rank][case]["sent"])
    return "The sum is right on 2, 3 and 4 ranks, and no rank sends more than 2(p - 1) chunks of its tensor."


def _round_the_ring(where: str, rank: int, ranks: int, length: int, sent: list[tuple[int, int]]) -> None:
    right = (rank + 1) % ranks
    if others := sorted({to for to, _ in sent} - {right}):
        wrong(f"{where}: in this ring, rank {rank} sends to its right neighbour only.",
              expected=f"messages to rank {right}", got=f"messages to rank {others[0]}")
    most = 2 * (ranks - 1) * -(-length // ranks)
    if (numbers := sum(count for _, count in sent)) > most:
        wrong(f"{where}: rank {rank} sends more than 2(p - 1) chunks of the tensor.",
              expected=f"at most {most} numbers", got=f"{numbers} numbers")


def _numbers(count: int, rank: int) -> torch.Tensor:
    return torch.randint(100, (count,), generator=torch.Generator().manual_seed(rank)).float()


def _called(answer: Callable, mine: list[torch.Tensor]) -> tuple[Any, torch.Tensor]:
    """On a rank: what the answer says of this rank's losses, and the losses afterwards."""
    losses = mine[dist.get_rank()]
    return answer(losses), losses


def _watched(answer: Callable, cases: list[list[tuple]]) -> list[dict[str, Any]]:
    """On a rank, for each case: the tensor after the answer, what was sent to whom, and the collectives it called."""
    found, send = [], dist.ProcessGroup.send
    for tensor, *more in cases[dist.get_rank()]:
        sent: list[tuple[int, int]] = []

        def noted(group: Any, tensors: list, to: int, tag: int, sent: list = sent) -> Any:
            sent.append((to, sum(t.numel() for t in tensors)))
            return send(group, tensors, to, tag)

        dist.ProcessGroup.send = noted  # all of send, isend and batch_isend_irecv end here
        tensor = tensor.clone()
        try:
            with Traffic() as traffic:
                answer(tensor, *more)
        finally:
            dist.ProcessGroup.send = send
        collectives = [name for name in traffic.calls if name not in ("send", "recv", "barrier")]
        found.append({"tensor": tensor, "sent": sent, "collectives": collectives})
    return found


def _no_collective(found: list[list[dict[str, Any]]]) -> None:
    for case in (case for rank in found for case in rank):
        if case["collectives"]:
            wrong("Write it with messages from one rank to another; it calls a ready-made collective.",
                  expected="send, recv, isend, irecv", got=f"a collective: {case['collectives'][0]}")
