"""The exercises of notebook 05: how replicas stay equal."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from ..ranks.launch import launch
from .exercise import exercise, expect, wrong

RANKS = 3
SECONDS = 30.0  # a collective that some ranks never call ends here, in words


def rank_share(samples: int, ranks: int, rank: int) -> list[int]:
    each = -(-samples // ranks)  # rounded up: every rank gets as many
    return [(rank + ranks * i) % samples for i in range(each)]


@exercise(
    rank_share,
    "Rank r starts at sample r and takes every `ranks`-th one: range(rank, …, ranks).",
    "Every rank gets samples / ranks of them, rounded up.",
    "The rows that are missing are taken from the start again: number % samples, also with fewer samples than ranks.",
)
def _rank_share(answer: Callable[[int, int, int], list[int]]) -> str:
    for samples, ranks in [(16, 4), (18, 4), (1437, 4), (2, 7)]:
        for rank in range(ranks):
            sampler = DistributedSampler(range(samples), ranks, rank, shuffle=False)
            expect(f"rank_share({samples}, {ranks}, {rank})", list(sampler), answer(samples, ranks, rank))
    return "The same lists as DistributedSampler's."


def replicas_equal(model: nn.Module) -> bool:
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    return all(torch.equal(theirs, everyones[0]) for theirs in everyones)


CASES = (
    ("All replicas are equal", True),
    ("One weight of rank 2 is another", False),
    ("Two weights of rank 1 have changed places", False),
    ("Only a frozen weight of rank 0 is another", False),
    ("All replicas are equal again", True),
)


def _case(number: int) -> nn.Sequential:
    """The model of this rank in `CASES[number]`."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_((torch.arange(parameter.numel()) + i).view_as(parameter) / 8)
        model[0].requires_grad_(False)
        weight = model[2].weight
        if number == 1 and dist.get_rank() == 2:
            weight[1, 3] += 1e-6
        if number == 2 and dist.get_rank() == 1:
            weight[0, 0], weight[0, 1] = weight[0, 1].clone(), weight[0, 0].clone()
        if number == 3 and dist.get_rank() == 0:
            model[0].bias[0] += 1
    return model


def _compare_replicas(answer: Callable[[nn.Module], bool]) -> list[tuple[Any, bool]]:
    """This rank's answer to each case, and whether the model was left as it was."""
    found = []
    for number in range(len(CASES)):
        model, before = _case(number), _case(number)
        said = answer(model)
        untouched = all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
        found.append((said, untouched))
    return found


@exercise(
    replicas_equal,
    "No rank can know alone. Which collective brings everybody's weights to everybody? all_gather.",
    "Make one flat tensor of all parameters, the frozen ones too: torch.cat([p.detach().flatten() for p in …]).",
    "All-gather it, then compare every copy with copy 0 by torch.equal: every rank compares the same, so all agree.",
)
def _replicas_equal(answer: Callable[[nn.Module], bool]) -> str:
    run = launch(_compare_replicas, answer, ranks=RANKS, device="cpu", time_limit=SECONDS, show=False)
    for number, (what, equal) in enumerate(CASES):
        said = [result[number][0] for result in run.results]
        expect(f"{what}; what ranks 0, 1 and 2 answered", [equal] * RANKS, None if said == [None] * RANKS else said)
        if not all(result[number][1] for result in run.results):
            wrong(f"{what}: it changed the model, and was only to look.", expected="the parameters as they were",
                  got="other parameters")  # fmt: skip
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


class TiedAndFrozen(nn.Module):
    """8 classes in, 8 classes out; the same matrix at both ends, a frozen layer between, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.hidden = nn.Linear(6, 6)
        self.out = nn.Linear(6, 8, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(6) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N,) int64 -> (N, 8)
        return self.out(torch.tanh(self.hidden(self.frozen(self.embed(x)) * self.scale)))


def _train_replica(answer: Callable[[nn.Module], None], count: int) -> dict[str, Any]:
    """`count` steps with the answer and with DDP: the tensors and gradients of both, and the messages counted."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    mine = TiedAndFrozen()
    reference = DistributedDataParallel(copy.deepcopy(mine))
    real, calls = dist.all_reduce, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return real(*args, **kwargs)

    answer(mine)
    start = {name: (tensor.clone(), reference.module.state_dict()[name].clone())
             for name, tensor in mine.state_dict().items()}  # fmt: skip
    steps = []
    for step in range(count):
        x = torch.randint(8, (5,), generator=torch.Generator().manual_seed(100 * step + rank))
        dist.all_reduce = counted
        try:
            _step(mine, x)
        finally:
            dist.all_reduce = real
        _step(reference, x)
        theirs = dict(reference.module.named_parameters())
        steps.append({name: (p.grad, theirs[name].grad) for name, p in mine.named_parameters()})
        with torch.no_grad():
            for model in (mine, reference):
                for p in model.parameters():
                    if p.grad is not None:
                        p -= 0.1 * p.grad
    return {"start": start, "steps": steps, "messages": len(calls) / count}


def _step(model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    nn.functional.cross_entropy(model(x), (x + 1) % 8).backward()


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
    run = launch(_train_replica, answer, 1, ranks=RANKS, device="cpu", time_limit=SECONDS, show=False)
    kinds = dict.fromkeys(("frozen.weight", "frozen.bias"), "the frozen ") | {"scale": "the buffer "}
    for rank, result in enumerate(run.results):
        for name, (got, expected) in result["start"].items():
            what = f"After hand_ddp(model), {kinds.get(name, '')}{name} of rank {rank} is to be rank 0's"
            expect(what, expected, got)
    _gradients(run.results)  # what is wrong in the first step is said before the next ones stumble over it
    run = launch(_train_replica, answer, 3, ranks=RANKS, device="cpu", time_limit=SECONDS, show=False)
    _gradients(run.results)
    if (messages := run.results[0]["messages"]) > 1:
        wrong("The gradients are right. Now send them in one bucket.", expected="1 all-reduce a step",
              got=f"{messages:g} all-reduces a step")  # fmt: skip
    return "Equal to DDP on three ranks, tied and frozen parameters included, with one all-reduce a step."


def _gradients(results: list[dict[str, Any]]) -> None:
    for step in range(len(results[0]["steps"])):
        for rank, result in enumerate(results):
            for name, (got, expected) in result["steps"][step].items():
                _gradient(f"Step {step}: the gradient of {name} on rank {rank}", expected, got)


def _gradient(what: str, expected: torch.Tensor | None, got: torch.Tensor | None) -> None:
    if expected is None:
        if got is not None:
            wrong(f"{what}: a frozen parameter gets no gradient.", expected="None", got=got)
        return
    if got is None:
        wrong(f"{what} is missing.", expected=expected, got="None")
    if not torch.allclose(expected, got, atol=1e-6):
        for factor, why in [(RANKS, "the sum of the ranks' gradients, not their mean"),
                            (1 / RANKS, "the mean divided by the number of ranks once more")]:  # fmt: skip
            if torch.allclose(expected * factor, got, atol=1e-6):
                wrong(f"{what} is {why}.", expected=expected, got=got)
    expect(what, expected, got, tol=1e-6)
