"""The exercises on DDP: how replicas stay equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from ..machine import pick
from ..ranks.traffic import Traffic
from .ddp_cases import CASES, HeadFirst, TiedAndFrozen, case
from .old import exercise, expect, wrong
from .on_ranks import apart, everywhere, on_ranks, same

RANKS = 3
SECONDS = 10.0  # a collective that some ranks never call ends here, in words


def rank_share(samples: int, ranks: int, rank: int) -> list[int]:
    each = -(-samples // ranks)  # rounded up: every rank gets as many
    return [(rank + ranks * i) % samples for i in range(each)]


SHARES = ((16, 4), (18, 4), (1437, 4), (2, 7), (5, 1))  # samples, ranks


@exercise(
    rank_share,
    "Rank r starts at sample r and takes every `ranks`-th one: range(rank, …, ranks).",
    "Every rank gets samples / ranks of them, rounded up.",
    "What is missing is taken from the start again: number % samples, also with fewer samples than ranks.",
)
def _rank_share(answer: Callable[[int, int, int], list[int]]) -> str:
    said = apart(_all_shares, answer, seconds=SECONDS)
    for samples, ranks in SHARES:
        for rank in range(ranks):
            sampler = DistributedSampler(range(samples), ranks, rank, shuffle=False)
            expect(f"rank_share({samples}, {ranks}, {rank})", list(sampler), said.pop(0))
    return "The same lists as DistributedSampler's."


def _all_shares(answer: Callable[[int, int, int], list[int]]) -> list[Any]:
    found = [answer(samples, ranks, rank) for samples, ranks in SHARES for rank in range(ranks)]
    return [list(share) if isinstance(share, range) else getattr(share, "tolist", lambda share=share: share)()
            for share in found]


def replicas_equal(model: nn.Module) -> bool:
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    return all(torch.equal(theirs, everyones[0]) for theirs in everyones)


def _compare_replicas(answer: Callable[[nn.Module], bool]) -> list[tuple[Any, str]]:
    """This rank's answer to each case, and what it changed in the model."""
    found = []
    for number in range(len(CASES)):
        model, before = case(number), case(number)
        said, changed = answer(model), ""
        for (name, now), then in zip(model.named_parameters(), before.parameters(), strict=True):
            if not torch.equal(now, then):
                changed = f"another {name}"
            elif now.requires_grad != then.requires_grad:
                changed = f"{name}.requires_grad is now {now.requires_grad}"
        if not model.training:
            changed = "the model in eval mode"
        found.append((bool(said) if isinstance(said, Tensor) and said.numel() == 1 else said, changed))
    return found


@exercise(
    replicas_equal,
    "No rank can know alone. Which collective brings everybody's weights to everybody? all_gather.",
    "Make one flat tensor of all parameters, the frozen ones too: torch.cat([p.detach().flatten() for p in …]).",
    "All-gather it, then compare every copy with copy 0 by torch.equal: every rank compares the same, so all agree.",
)
def _replicas_equal(answer: Callable[[nn.Module], bool]) -> str:
    results = on_ranks(_compare_replicas, answer, ranks=RANKS, seconds=SECONDS)
    for number, (what, equal) in enumerate(CASES):
        said = [result[number][0] for result in results]
        if said == [None] * RANKS:
            expect("its answer", equal, None)
        everywhere(said, "True or False")
        if said != [equal] * RANKS:
            wrong(f"{what}: not what was expected.", expected=f"{equal} on all {RANKS} ranks",
                  got="on ranks 0, 1, 2: " + ", ".join(map(repr, said)))
        for rank, result in enumerate(results):
            if result[number][1]:
                wrong(f"{what}: it changed the model, and was only to look.", expected="the model as it was",
                      got=f"on rank {rank} {result[number][1]}")
    return f"Right in {len(CASES)} cases on {RANKS} ranks, and all ranks agree."


def hand_ddp(model: nn.Module) -> None:
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    trained = [p for p in model.parameters() if p.requires_grad]  # parameters() gives a tied one once
    ready = []

    def send_when_all_are_ready(parameter: nn.Parameter) -> None:
        ready.append(parameter)
        if len(ready) < len(trained):
            return
        ready.clear()
        bucket = torch.cat([p.grad.flatten() for p in trained])  # in the same order on every rank
        dist.all_reduce(bucket)
        bucket /= dist.get_world_size()
        for p, mean in zip(trained, bucket.split([p.numel() for p in trained]), strict=True):
            p.grad.copy_(mean.view_as(p))

    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(send_when_all_are_ready)


STEPS = ("In the first step", "In the second step", "In a step without zero_grad, which adds to the gradients")


def _train_replica(answer: Callable[[nn.Module], None], build: Callable[[], nn.Module]) -> dict[str, Any]:
    """Steps with the answer, and steps of one process with the data of all ranks: (the answer's, expected) by name."""
    rank, ranks, models = dist.get_rank(), dist.get_world_size(), []
    for seed in (rank, 0):
        torch.manual_seed(seed)
        models.append(build().to(pick()))
    mine, whole = models
    before = dict(mine.named_parameters())
    answer(mine)
    if replaced := [name for name, p in mine.named_parameters() if before.get(name) is not p]:
        return {"replaced": replaced[0]}
    state = whole.state_dict()
    start = {name: (tensor.clone(), state[name].clone()) for name, tensor in mine.state_dict().items()}
    steps, sent = [], []
    for step in range(len(STEPS)):
        x = [torch.randint(8, (5,), generator=torch.Generator().manual_seed(100 * step + r)) for r in range(ranks)]
        if step < 2:
            mine.zero_grad()
            whole.zero_grad()
        with Traffic() as traffic:
            _loss(mine, x[rank].to(pick())).backward()
        sent.append(traffic.order)
        (sum(_loss(whole, each.to(pick())) for each in x) / ranks).backward()
        theirs = dict(whole.named_parameters())
        steps.append({n: [p.grad if p.grad is None else p.grad.clone() for p in (q, theirs[n])]
                      for n, q in mine.named_parameters()})
        with torch.no_grad():
            for p in [*mine.parameters(), *whole.parameters()]:
                p -= 0.1 * (0 if p.grad is None else p.grad)
    needed = sum(p.numel() * p.element_size() for p in whole.parameters() if p.requires_grad)
    return {"start": start, "steps": steps, "sent": sent, "needed": needed}


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), (x + 1) % 8)


@exercise(
    hand_ddp,
    "First broadcast [*model.parameters(), *model.buffers()] from rank 0; tensor.detach() shares the memory, so that "
    "broadcast may write into it.",
    "Which gradients will there be? trained = [p for p in model.parameters() if p.requires_grad]: no frozen ones, "
    "and parameters() lists a tied one once.",
    "A hook on each of them counts. At the last: torch.cat all p.grad.flatten(), all_reduce, divide, and copy the "
    "pieces back with p.grad.copy_(…). Then count from 0 again for the next step.",
)
def _hand_ddp(answer: Callable[[nn.Module], None]) -> str:
    for build, ranks in ((TiedAndFrozen, RANKS), (HeadFirst, 2)):
        results = on_ranks(_train_replica, answer, build, ranks=ranks, seconds=SECONDS)
        _starts(results)
        for step, when in enumerate(STEPS):
            for rank, result in enumerate(results):
                for name, (got, expected) in result["steps"][step].items():
                    what = f"{when} of {build.__name__}, the gradient of {name} on rank {rank}"
                    _gradient(what, expected, got, ranks)
        for when, order in zip(STEPS, results[0]["sent"], strict=True):
            _one_message(when, order, results[0]["needed"])
    return "Right on two and three ranks, tied and frozen parameters included, with one all-reduce for each backward."


def _starts(results: list[dict[str, Any]]) -> None:
    kinds = dict.fromkeys(("frozen.weight", "frozen.bias"), "the frozen ")
    kinds |= dict.fromkeys(("scale", "seen"), "the buffer ")
    for rank, result in enumerate(results):
        if "replaced" in result:
            wrong(f"On rank {rank} {result['replaced']} is a new parameter, which no optimizer made before knows.",
                  expected="the parameters of the model, overwritten", got="other parameters")
        for name, (got, expected) in result["start"].items():
            same(f"At the start, {kinds.get(name, '')}{name} of rank {rank} is to be rank 0's", expected, got)


def _one_message(when: str, order: list[tuple[str, int]], needed: int) -> None:
    said = ", ".join(f"{sum(n == name for n, _ in order)} {name}" for name in dict.fromkeys(n for n, _ in order))
    if [name for name, _ in order] != ["all-reduce"]:
        wrong(f"{when} the gradients are right. Now send them in one bucket.", expected="1 all-reduce a backward",
              got=said or "no message")
    if order[0][1] > needed:
        wrong(f"{when} the message is larger than the gradients: is a tied one in it twice, or a frozen one?",
              expected=f"{needed} bytes", got=f"{order[0][1]} bytes")


def _gradient(what: str, expected: Tensor | None, got: Tensor | None, ranks: int) -> None:
    if expected is None:
        if got is not None:
            wrong(f"{what}: a frozen parameter gets no gradient.", expected="None", got=got)
        return
    if got is None:
        wrong(f"{what} is missing.", expected=expected, got="None")
    if got.shape == expected.shape and not torch.allclose(expected, got, atol=1e-5):
        factor = float((got * expected).sum() / expected.square().sum())
        if torch.allclose(expected * factor, got, atol=1e-5):
            why = "the sum of the ranks' gradients, not their mean" if abs(factor - ranks) < 1e-3 else "not their mean"
            wrong(f"{what} is {why}.", expected="the mean", got=f"{factor:.3g} times the mean")
    same(what, expected, got, tol=1e-5)
