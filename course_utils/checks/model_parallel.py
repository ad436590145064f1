"""The exercises on model parallelism: who waits how long, and where to cut a stack of layers."""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import torch
import torch.distributed as dist

from ..machine import pick
from ..ranks.launch import launch
from ..ranks.spans import span
from .old import exercise, expect, wrong

SECONDS = 30.0


def one_at_a_time(forward: Sequence[float], backward: Sequence[float], batches: int) -> None:
    """One batch after the other, forward through all stages and backward through all; seconds of each by rank.

    Each send meets the receive that its neighbour calls next, so nobody waits in a circle.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.barrier()
    for number in range(batches):
        batch = torch.tensor(number, device=pick())
        if rank > 0:
            _receive(batch, rank - 1)
        with span("forward"):
            time.sleep(forward[rank])
        if rank < last:
            dist.send(batch, rank + 1)
            _receive(batch, rank + 1)
        with span("backward"):
            time.sleep(backward[rank])
        if rank > 0:
            dist.send(batch, rank - 1)


def stream(seconds: Sequence[float], batches: int) -> None:
    """Forward only: rank r takes `seconds[r]` for each batch, hands it on, and takes the next one at once."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.barrier()
    sent = []
    for number in range(batches):
        batch = torch.tensor(number, device=pick())  # a new one each time: what is on its way must not be changed
        if rank > 0:
            _receive(batch, rank - 1)
        with span("forward"):
            time.sleep(seconds[rank])
        if rank < last:
            sent.append((dist.isend(batch, rank + 1), batch))
    for message, _ in sent:
        message.wait()


def _receive(message: torch.Tensor, source: int) -> None:
    dist.recv(message, source)
    message.item()  # on an accelerator recv returns at once; whoever reads waits


def idle_shares(forward, backward):
    busy = [f + b for f, b in zip(forward, backward, strict=True)]
    return [1 - own / sum(busy) for own in busy]


@exercise(
    idle_shares,
    "While one stage computes, all others wait. How long does one batch take, there and back, over all stages?",
    "A rank is busy for its own forward and its own backward; all the rest of the batch's time it waits.",
    "1 - own / total, where own is forward[r] + backward[r] and total is the sum of all ranks' own.",
)
def _idle_shares(answer: Callable[[list[float], list[float]], list[float]]) -> str:
    for forward, backward in [([1.0, 1.0], [2.0, 2.0]), ([1.0] * 4, [2.0] * 4), ([3.0, 1.0, 2.0], [6.0, 2.0, 2.0])]:
        expected = idle_shares(forward, backward)
        expect(f"idle_shares({forward}, {backward})", expected, answer([*forward], [*backward]), tol=1e-6)
    forward, backward = [0.03, 0.01, 0.02], [0.06, 0.02, 0.04]
    said = answer([*forward], [*backward])
    run = launch(one_at_a_time, forward, backward, 3, ranks=3, time_limit=SECONDS, show=False)
    measured = [run.timeline.idle(rank) for rank in range(3)]
    for rank in range(3):
        expect(f"The idle share of rank {rank}, measured on 3 ranks", measured[rank], said[rank], tol=0.1)
    said, measured = (", ".join(f"{share:.0%}" for share in shares) for shares in (said, measured))
    return f"You say {said}; three real ranks measured {measured}."


def balance(costs, stages):
    def slowest(cuts):
        return max(sum(costs[a:b]) for a, b in pairwise((0, *cuts, len(costs))))

    cuts = min(combinations(range(1, len(costs)), stages - 1), key=slowest)
    return [b - a for a, b in pairwise((0, *cuts, len(costs)))]


def stage_costs(costs: list[float], counts: list[int]) -> list[float]:
    """What each stage costs when it takes the next `counts[i]` layers."""
    edges = [sum(counts[:i]) for i in range(len(counts) + 1)]
    return [sum(costs[a:b]) for a, b in pairwise(edges)]


def _counts(answer: Callable[[list[float], int], list[int]], costs: list[float], stages: int) -> list[int]:
    """The answer as plain whole numbers, if it is a way to cut at all."""
    call, counts = f"balance({costs}, {stages})", answer([*costs], stages)
    if not isinstance(counts, (list, tuple)):
        expect(call, balance(costs, stages), counts)
    try:
        counts = [operator.index(n) for n in counts]  # numpy's and torch's, too
    except (TypeError, RuntimeError):
        wrong(f"{call}: how many layers a stage takes is a whole number.", expected=balance(costs, stages), got=counts)
    if len(counts) != stages or min(counts) < 1 or sum(counts) != len(costs):
        wrong(f"{call}: each of the {stages} stages takes at least one layer, and together they take all "
              f"{len(costs)}.", expected=f"{stages} numbers from 1 that add up to {len(costs)}",
              got=f"{counts}: {len(counts)} numbers that add up to {sum(counts)}")
    return counts


@exercise(
    balance,
    "A stage is a run of neighbouring layers. The slowest stage counts, not the average: try all ways to cut.",
    "itertools.combinations(range(1, len(costs)), stages - 1) gives every choice of places to cut.",
    "For each choice the edges are 0, the cuts, len(costs); min(…, key=the largest sum between two edges).",
)
def _balance(answer: Callable[[list[float], int], list[int]]) -> str:
    draw = random.Random(0)
    last = [4, 4, 1, 1, 1, 1, 2, 2]
    cases = [([1] * 8, 4), ([8, 1, 1, 1, 1, 1, 1, 2], 4), ([5, 4, 3], 3), ([2, 3], 1), ([5, 3, 8, 1], 3)]
    cases += [([draw.randint(1, 9) for _ in range(9)], stages) for stages in (2, 3, 4, 5)]
    for costs, stages in [*cases, (last, 4)]:
        counts = _counts(answer, costs, stages)
        best, theirs = (stage_costs(costs, n) for n in (balance(costs, stages), counts))
        if max(theirs) > max(best):
            wrong(f"balance({costs}, {stages}) = {counts}: a slowest stage of {max(best)} can be had, this one has "
                  f"{max(theirs)}.", expected=f"stages of {best}", got=f"stages of {theirs}")
    seconds = [cost / 200 for cost in stage_costs(last, counts)]
    run = launch(stream, seconds, 6, ranks=4, time_limit=SECONDS, show=False)
    ends = [s.end for s in run.timeline.spans if s.rank == 3 and s.name.startswith("forward")]
    each = 1000 * (ends[-1] - ends[0]) / (len(ends) - 1)
    return f"The best cut each time. On 4 real ranks: a batch every {each:.0f} ms; the target was 20 ms."
