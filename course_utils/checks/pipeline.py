"""The exercises on pipelines: pipelines with a small bubble and little memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from .. import schedules
from ..lessons import models, pipeline
from ..machine import pick
from ..ranks.launch import launch
from .old import exercise, expect, wrong

SECONDS = 60.0
SIZE = {"layers": 4, "width": 16, "heads": 2, "context": 8}


def write_1f1b(rank: int, ranks: int, micro_batches: int) -> str:
    ahead = min(ranks - rank, micro_batches)
    order = [f"F{micro}" for micro in range(ahead)]
    for micro in range(micro_batches):
        order.append(f"B{micro}")
        if micro + ahead < micro_batches:
            order.append(f"F{micro + ahead}")
    return " ".join(order)


@exercise(
    write_1f1b,
    "The last rank can go backward at once: F0 B0 F1 B1 … Every rank before it has to send one more forward ahead, "
    "before its first gradient can be back.",
    "Rank r sends ahead = ranks - r forwards ahead, or all of them if there are fewer. That is also what it holds.",
    "Then, for each micro-batch k: B{k}, and F{k + ahead} if there is one. Join the words with spaces.",
)
def _write_1f1b(answer: Callable[[int, int, int], str]) -> str:
    for ranks, micro_batches in [(1, 2), (2, 3), (4, 8), (3, 7), (4, 2)]:
        allowed = [min(ranks - rank, micro_batches) for rank in range(ranks)]
        _play(answer, write_1f1b, ranks, micro_batches, allowed)
    _on_ranks(answer)
    return "The smallest bubble at the least memory; on 4 real ranks, losses and gradients are the whole model's."


def write_zero_bubble(rank: int, ranks: int, micro_batches: int) -> str:
    ahead = min(ranks - rank, micro_batches)
    order = [f"F{micro}" for micro in range(ahead)]
    for micro in range(micro_batches + rank):
        if micro < micro_batches:
            order.append(f"B{micro}")
        if micro >= rank:
            order.append(f"W{micro - rank}")
        if micro + ahead < micro_batches:
            order.append(f"F{micro + ahead}")
    return " ".join(order)


@exercise(
    write_zero_bubble,
    "The F and B stand as in 1F1B: rank r sends ranks - r forwards ahead, then one B and one F in turns.",
    "Rank 0 has no time to spare: its W follows each B at once. The last rank's first B are awaited by all others: "
    "there a W comes only when `ranks` micro-batches are held.",
    "Rank r is r micro-batches late: after B{k} comes W{k - r} if there is one, then the next F. The last W stand at "
    "the end.",
)
def _write_zero_bubble(answer: Callable[[int, int, int], str]) -> str:
    for ranks, micro_batches in [(1, 2), (2, 3), (4, 8), (3, 7), (4, 4)]:
        _play(answer, write_zero_bubble, ranks, micro_batches, [min(ranks, micro_batches)] * ranks, split=True)
    return "A third of 1F1B's waiting, and no rank holds more than rank 0 does with 1F1B."


def _play(
    answer: Callable[[int, int, int], str],
    published: Callable[[int, int, int], str],
    ranks: int,
    micro_batches: int,
    allowed: list[int],
    *,
    split: bool = False,
) -> None:
    """Play the orders that the learner wrote through, and end the check if they wait too long or hold too much."""
    orders = [answer(rank, ranks, micro_batches) for rank in range(ranks)]
    for rank, order in enumerate(orders):
        if order is None or order is ...:
            call = f"{published.__name__}({rank}, {ranks}, {micro_batches})"
            if any(isinstance(other, str) for other in orders):
                wrong(f"{call} returns nothing; for another rank it returns a text.", got=order)
            expect(call, published(rank, ranks, micro_batches), order)
    case = f"{micro_batches} micro-batches on {ranks} rank{'s' * (ranks > 1)}"
    schedule = schedules.parse(orders, micro_batches, name=case)
    if schedule.split != split:
        wrong(f"{case}: write {'F, B and W: there is no W' if split else 'F and B only: there is a W'} in it.",
              got=f"rank 0 does {orders[0]!r}")
    timeline = schedule.simulate()
    if any(held > most for held, most in zip(schedule.held, allowed, strict=True)):
        wrong(f"{case}: it works, but it holds too many activations at once. By rank:",
              expected=f"at the most {allowed}", got=[int(held) for held in schedule.held])
    bubble, found = schedules.bubble(ranks, micro_batches, split=split), timeline.idle()
    if found > bubble + 1e-9:
        wrong(f"{case}: the memory is right, but ranks wait too long.",
              expected=f"a bubble of {bubble:.1%}", got=f"{found:.1%}; rank 0 does {orders[0]!r}")


def _on_ranks(answer: Callable[[int, int, int], str]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(20, (8, 8), generator=generator) for _ in range(2))
    model = models.GPT(20, **SIZE)
    cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    schedule = schedules.parse([answer(rank, 4, 8) for rank in range(4)], 8)
    run = launch(_step, schedule, x, y, ranks=4, time_limit=SECONDS, show=False)
    gradients = {name: gradient for result in run.results for name, gradient in result.items()}
    for name, parameter in model.named_parameters():
        expect(f"On 4 ranks, the gradient of {name}", parameter.grad, gradients.get(name), tol=1e-5)


def _step(schedule: schedules.Schedule, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    model = models.GPT(20, **SIZE)
    rank = dist.get_rank()
    mine = {rank: pipeline.split(model, 4)[rank].to(pick())}
    pipeline.execute(schedule, mine, x.to(pick()), y.to(pick()), width=SIZE["width"], pace=(0.0, 0.0))
    return {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
