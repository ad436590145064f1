"""The exercises on sharding: published solutions pass, plausible wrong answers fail in words."""

import heapq
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course_utils import check
from tests.checks.judging import judge, solved


def test_zero_bytes_solution():
    assert check.zero_bytes(check.zero_bytes.published)


def test_zero_bytes_is_the_papers_figure():
    """Rajbhandari et al., 2020, figure 1: 7.5 billion parameters on 64 devices."""
    gigabytes = [round(check.zero_bytes.published(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)]
    assert gigabytes == [120.0, 31.4, 16.6, 1.9]


def all_divided(parameters, ranks, stage):
    return 16 * parameters / ranks if stage else 16 * parameters


def fp32(parameters, ranks, stage):
    shares = [ranks if stage >= least else 1 for least in (3, 2, 1)]
    return sum(each / share for each, share in zip((4, 4, 8), shares, strict=True)) * parameters


def in_gigabytes(parameters, ranks, stage):
    return check.zero_bytes.published(parameters, ranks, stage) / 1e9


def one_stage_late(parameters, ranks, stage):
    return check.zero_bytes.published(parameters, ranks, max(stage - 1, 0))


def whole_bytes_only(parameters, ranks, stage):
    shares = [ranks if stage >= least else 1 for least in (3, 2, 1)]
    return sum(each // share for each, share in zip((2, 2, 12), shares, strict=True)) * parameters


def parameters_before_gradients(parameters, ranks, stage):
    return (2 / (ranks if stage >= 2 else 1) + 2 + 12 / (ranks if stage else 1)) * parameters


def of_all_ranks(parameters, ranks, stage):
    return check.zero_bytes.published(parameters, ranks, stage) * ranks


def by_cases(parameters, ranks, stage):
    return parameters * {0: 16, 1: 4 + 12 / ranks, 2: 2 + 14 / ranks, 3: 16 / ranks}[stage]


def kept_and_cut(parameters, ranks, stage):
    cut = sum((12, 2, 2)[:stage])
    return parameters * (16 - cut) + parameters * cut / ranks


def exact(parameters, ranks, stage):
    parts = [Fraction(each, ranks if stage > i else 1) for i, each in enumerate((12, 2, 2))]
    return float(sum(parts) * Fraction(parameters))


@pytest.mark.parametrize("answer", [by_cases, kept_and_cut, exact])
def test_zero_bytes_written_otherwise(answer):
    solved("zero_bytes", answer)


@pytest.mark.parametrize("kind", [np.float64, torch.tensor])
def test_zero_bytes_of_other_kinds(kind):
    published = check.zero_bytes.published
    verdict = check.zero_bytes(lambda parameters, ranks, stage: kind(published(parameters, ranks, stage)))
    assert verdict, str(verdict)


@pytest.mark.parametrize(
    ("answer", "what", "expected", "got"),
    [
        (all_divided, "zero_bytes(7.5e+09, 64, 1)", "3.14062e+10", "1.875e+09"),
        (fp32, "zero_bytes(7.5e+09, 64, 1)", "3.14062e+10", "6.09375e+10"),
        (lambda parameters, ranks, stage: "120 GB", "a number was expected", "1.2e+11", "'120 GB'"),
        (in_gigabytes, "zero_bytes(7.5e+09, 64, 0) is right in gigabytes", "bytes: 1.2e+11", "120"),
        (one_stage_late, "zero_bytes(7.5e+09, 64, 1)", "3.14062e+10", "1.2e+11"),
        (whole_bytes_only, "zero_bytes(7.5e+09, 64, 1)", "3.14062e+10", "3e+10"),
        (parameters_before_gradients, "zero_bytes(7.5e+09, 64, 3)", "1.875e+09", "1.66406e+10"),
        (of_all_ranks, "zero_bytes(7.5e+09, 64, 0)", "1.2e+11", "7.68e+12"),
    ],
)
def test_zero_bytes_wrong(answer, what, expected, got):
    verdict = judge("zero_bytes", answer, what)
    assert (verdict.expected, verdict.got) == (expected, got)


def test_deal_parameters_solution():
    assert check.deal_parameters(check.deal_parameters.published)


def in_turn(sizes, ranks):
    return [i % ranks for i in range(len(sizes))]


def as_they_come(sizes, ranks):
    loads, owners = [0] * ranks, []
    for size in sizes:
        owners.append(loads.index(min(loads)))
        loads[owners[-1]] += size
    return owners


def last_load(sizes, ranks):
    """`=` where `+=` is meant."""
    owners, loads = [0] * len(sizes), [0] * ranks
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] = sizes[i]
    return owners


def rest_on_the_last(sizes, ranks):
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    return [min(order.index(i), ranks - 1) for i in range(len(sizes))]


def largest_first_only(sizes, ranks):
    first = max(range(len(sizes)), key=lambda i: sizes[i])
    order = [first, *(i for i in range(len(sizes)) if i != first)]
    owners = as_they_come([sizes[i] for i in order], ranks)
    return [owners[order.index(i)] for i in range(len(sizes))]


@pytest.mark.parametrize("answer", [last_load, rest_on_the_last, largest_first_only])
def test_deal_parameters_unbalanced(answer):
    verdict = check.deal_parameters(answer)
    assert verdict.state == "wrong"
    assert "one rank gets more than it needs to" in verdict.text


def by_heap(sizes, ranks):
    owners, loads = [0] * len(sizes), [(0, rank) for rank in range(ranks)]
    for size, i in sorted(((size, i) for i, size in enumerate(sizes)), reverse=True):
        load, owners[i] = heapq.heappop(loads)
        heapq.heappush(loads, (load + size, owners[i]))
    return owners


def by_torch(sizes, ranks):
    loads, owners = torch.zeros(ranks), torch.zeros(len(sizes), dtype=torch.long)
    for i in torch.tensor(sizes).argsort(descending=True):
        owners[i] = loads.argmin()
        loads[owners[i]] += sizes[i]
    return owners.tolist()


def best_of_all(sizes, ranks):
    """Every way to deal, without symmetric ones: never worse than the largest first."""
    best = (sum(sizes) + 1, [])

    def deal(owners, loads):
        nonlocal best
        if max(loads) >= best[0]:
            return
        if len(owners) == len(sizes):
            best = (max(loads), owners)
            return
        for rank in range(min(ranks, max(owners, default=-1) + 2)):
            deal([*owners, rank], [load + sizes[len(owners)] * (r == rank) for r, load in enumerate(loads)])

    deal([], [0] * ranks)
    return best[1]


def from_the_last_rank(sizes, ranks):
    return tuple(ranks - 1 - owner for owner in by_heap(sizes, ranks))


@pytest.mark.parametrize("answer", [by_heap, by_torch, best_of_all, from_the_last_rank])
def test_deal_parameters_written_otherwise(answer):
    solved("deal_parameters", answer)


def test_deal_parameters_with_numpy():
    verdict = check.deal_parameters(lambda sizes, ranks: list(np.array(check.deal_parameters.published(sizes, ranks))))
    assert verdict, str(verdict)


@pytest.mark.parametrize(
    ("answer", "what", "got"),
    [
        (in_turn, "one rank gets more than it needs to", "8, dealt as [0, 1, 0, 1]"),
        (as_they_come, "one rank gets more than it needs to", "8, dealt as [0, 1, 0, 1]"),
        (lambda sizes, ranks: [0], "a rank for each parameter", "[0]"),
        (lambda sizes, ranks: [1 + i % ranks for i in range(len(sizes))], "the number of a rank", "4"),
        (lambda sizes, ranks: [0.0] * len(sizes), "the number of a rank", "0.0, a float"),
    ],
)
def test_deal_parameters_wrong(answer, what, got):
    verdict = judge("deal_parameters", answer, what)
    assert verdict.got == got
    assert verdict.expected


def test_deal_parameters_that_raises():
    def deal_parameters(sizes, ranks):
        return sizes[ranks]

    verdict = check.deal_parameters(deal_parameters)
    assert "IndexError" in verdict.text
    assert verdict.line.endswith("return sizes[ranks]")
    assert "course_utils" not in str(verdict)


def test_shard_optimizer_solution():
    solved("shard_optimizer", check.shard_optimizer.published)


def trained_of(parameters):
    return [p for p in parameters if p.requires_grad]


def average(parameters):
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def all_reduced(parameters, make):
    return dealt(parameters, make, check.deal_parameters.published, dist.get_world_size())


def an_optimizer_each(parameters, make):
    """One optimizer for each of its parameters, and none where it has none."""
    trained = trained_of(parameters)
    owners = check.deal_parameters.published([p.numel() for p in trained], dist.get_world_size())
    pairs = list(zip(trained, owners, strict=True))
    optimizers = [make([p]) for p, owner in pairs if owner == dist.get_rank()]

    def step():
        average(trained)
        for optimizer in optimizers:
            optimizer.step()
        for p, owner in pairs:
            dist.broadcast(p.data, owner)

    return step


class Stepper:
    """Gathers lists of tensors in place of broadcasts."""

    def __init__(self, parameters, make):
        self.trained, ranks = trained_of(parameters), dist.get_world_size()
        self.owners = by_heap([p.numel() for p in self.trained], ranks)
        self.mine = [p for p, o in zip(self.trained, self.owners, strict=True) if o == dist.get_rank()]
        self.optimizer = make(self.mine) if self.mine else None

    def __call__(self):
        average(self.trained)
        if self.optimizer:
            self.optimizer.step()
        for p, owner in zip(self.trained, self.owners, strict=True):
            found = [torch.empty_like(p) for _ in range(dist.get_world_size())]
            dist.all_gather(found, p.detach())
            p.detach().copy_(found[owner])


def sent_when_ready(parameters, make):
    """ZeRO-2: each gradient is averaged in the backward, by a hook, and kept by its owner only."""
    trained, rank = trained_of(parameters), dist.get_rank()
    owners = check.deal_parameters.published([p.numel() for p in trained], dist.get_world_size())
    mine = [p for p, owner in zip(trained, owners, strict=True) if owner == rank]
    optimizer = make(mine) if mine else None

    def ready(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
        if not any(p is q for q in mine):
            p.grad = None

    for p in trained:
        p.register_post_accumulate_grad_hook(ready)

    def step():
        if optimizer:
            optimizer.step()
        for p, owner in zip(trained, owners, strict=True):
            dist.broadcast(p.detach(), src=owner)

    return step


@pytest.mark.parametrize("answer", [all_reduced, an_optimizer_each, Stepper, sent_when_ready])
def test_shard_optimizer_written_otherwise(answer):
    solved("shard_optimizer", answer)


def not_sharded(parameters, make):
    trained = trained_of(parameters)
    optimizer = make(trained)

    def step():
        average(trained)
        optimizer.step()

    return step


def in_flat_pieces(parameters, make):
    """As in the notebook: right for Adam, and only for optimizers that work number by number."""
    trained, rank, ranks = trained_of(parameters), dist.get_rank(), dist.get_world_size()
    sizes = [p.numel() for p in trained]
    padding = [0, -sum(sizes) % ranks]
    flat = torch.nn.functional.pad(torch.cat([p.detach().flatten() for p in trained]), padding)
    pieces = list(flat.chunk(ranks))
    optimizer = make([pieces[rank]])

    def step():
        gradients = torch.nn.functional.pad(torch.cat([p.grad.flatten() for p in trained]), padding)
        pieces[rank].grad = torch.empty_like(pieces[rank])
        dist.reduce_scatter(pieces[rank].grad, list(gradients.chunk(ranks)))
        pieces[rank].grad /= ranks
        optimizer.step()
        dist.all_gather(pieces, pieces[rank].clone())
        for p, values in zip(trained, flat[: sum(sizes)].split(sizes), strict=True):
            p.detach().copy_(values.view_as(p))

    return step


def sum_of_gradients(parameters, make):
    """Without the division: Adam does not see it, SGD does."""
    return dealt(parameters, make, check.deal_parameters.published, 1)


def dealt_as_they_come(parameters, make):
    return dealt(parameters, make, as_they_come, dist.get_world_size())


def dealt(parameters, make, deal, divisor):
    trained = trained_of(parameters)
    owners = deal([p.numel() for p in trained], dist.get_world_size())
    mine = [p for p, owner in zip(trained, owners, strict=True) if owner == dist.get_rank()]
    optimizer = make(mine) if mine else None

    def step():
        for p in trained:
            dist.all_reduce(p.grad)
            p.grad /= divisor
        if optimizer:
            optimizer.step()
        for p, owner in zip(trained, owners, strict=True):
            dist.broadcast(p.detach(), src=owner)

    return step


def not_sent(parameters, make):
    trained, rank = trained_of(parameters), dist.get_rank()
    mine = trained[rank::3]
    optimizer = make(mine) if mine else None

    def step():
        average(trained)
        if optimizer:
            optimizer.step()

    return step


def with_frozen(parameters, make):
    optimizer = make(parameters)

    def step():
        average(parameters)
        optimizer.step()

    return step


def empty_on_a_rank(parameters, make):
    trained = trained_of(parameters)
    owners = check.deal_parameters.published([p.numel() for p in trained], 3)
    optimizer = make([p for p, owner in zip(trained, owners, strict=True) if owner == dist.get_rank()])

    def step():
        average(trained)
        optimizer.step()
        for p, owner in zip(trained, owners, strict=True):
            dist.broadcast(p.detach(), src=owner)

    return step


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (not_sharded, "SGD: the weights are right, but rank 0 keeps states that others could keep"),
        (in_flat_pieces, "an optimizer that looks at whole tensors: 0.weight on rank 0 after step 1"),
        (not_sent, "SGD: 0.bias on rank 0 after step 1"),
        (sum_of_gradients, "SGD: 0.weight on rank 0 after step 1"),
        (dealt_as_they_come, "Adam: the weights are right, but rank 1 keeps states that others could keep"),
        (with_frozen, "'NoneType'"),
        (empty_on_a_rank, "optimizer got an empty parameter list"),
        (lambda parameters, make: 3, "What it returns on rank 0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_shard_optimizer_wrong(answer, words):
    judge("shard_optimizer", answer, words)


def test_shard_optimizer_says_how_much_is_kept():
    verdict = check.shard_optimizer(not_sharded)
    assert (verdict.expected, verdict.got) == ("at most 42 values of the 67", "67 values")


def test_shard_optimizer_that_returns_nothing_yet():
    def shard_optimizer(parameters, make):
        mine = trained_of(parameters)  # noqa: F841

    assert check.shard_optimizer(shard_optimizer).state == "not yet"


def test_shard_optimizer_that_hangs_names_the_ranks(monkeypatch):
    from course_utils.checks import sharding

    monkeypatch.setattr(sharding, "SECONDS", 2.0)

    def shard_optimizer(parameters, make):
        if dist.get_rank() == 0:
            dist.barrier()

    verdict = check.shard_optimizer(shard_optimizer)
    assert verdict.state == "wrong"
    assert "rank" in verdict.text
