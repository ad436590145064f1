"""The exercises on what a machine has: right answers in other styles pass, plausible wrong ones fail in true words."""

import numpy
import pytest
import torch
import torch.distributed as dist

from course_utils import check, pick
from course_utils.checks import start_here
from tests.checks.judging import judge


@pytest.mark.parametrize("name", ["pick_device", "rank_device", "shared_sum"])
def test_published(name):
    exercise = getattr(check, name)
    assert exercise(exercise.published), str(exercise(exercise.published))


# -- pick_device ------------------------------------------------------------------------------------------------------


def one_by_one():
    if torch.cuda.is_available():
        return torch.device("cuda:0")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("xpu", 0) if torch.xpu.is_available() else torch.device("cpu")


def as_apple_says():
    if torch.cuda.device_count():
        return torch.device("cuda", torch.cuda.device_count() - 1)
    if torch.backends.mps.is_built() and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def from_accelerator():
    from torch.accelerator import current_accelerator, is_available

    return current_accelerator() if is_available() else torch.device("cpu")


def by_count():
    kind = "cpu"
    if torch.accelerator.device_count() > 0:
        kind = torch.accelerator.current_accelerator().type
    return torch.device(kind)


@pytest.mark.parametrize("answer", [one_by_one, as_apple_says, from_accelerator, by_count, lambda: pick()])
def test_pick_device_in_other_styles(answer):
    assert check.pick_device(answer), str(check.pick_device(answer))


def by_making_a_tensor():
    try:
        return torch.empty(1, device="cuda").device
    except (AssertionError, RuntimeError):
        return torch.device("cpu")


def as_built():
    found = torch.accelerator.current_accelerator()
    return found if found is not None else torch.device("cpu")


def one_too_many():
    if torch.accelerator.is_available():
        return torch.device(torch.accelerator.current_accelerator().type, torch.accelerator.device_count())
    return torch.device("cpu")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"), "On a Mac with an Apple GPU: another"),
        (lambda: torch.accelerator.current_accelerator(check_available=True), "give a torch.device"),
        (lambda: torch.accelerator.current_accelerator(), "give a torch.device"),
        (lambda: "cpu", "'cpu'"),
        (as_built, "built for CUDA and no GPU: another kind"),
        (one_too_many, "there is no cuda:4"),
        (lambda: torch.device("cuda:7") if torch.cuda.is_available() else pick(), "there is no cuda:7"),
        (lambda: torch.device("cpu"), "another kind"),
        (by_making_a_tensor, "it tried to make a tensor there"),
        (lambda: torch.device(torch.accelerator.current_accelerator().type), "It raised AttributeError"),
        (lambda: torch.device("mps" if torch.backends.mps.is_available() else "cuda"), "another kind"),
    ],
)
def test_pick_device_wrong(answer, says):
    verdict = check.pick_device(answer)
    assert verdict.state == "wrong", str(verdict)
    if not torch.accelerator.is_available():
        assert says in str(verdict), str(verdict)


def test_nothing_stays_pretended():
    before = torch.cuda.is_available, torch.accelerator.current_accelerator, torch._C._accelerator_getAccelerator
    check.pick_device(lambda: 1 / 0)
    now = torch.cuda.is_available, torch.accelerator.current_accelerator, torch._C._accelerator_getAccelerator
    assert now == before


# -- rank_device ------------------------------------------------------------------------------------------------------


def with_else(local_rank, ranks_here, gpus):
    if gpus < ranks_here:
        return "cpu"
    return "cuda:" + str(local_rank)


def from_a_list(local_rank, ranks_here, gpus):
    names = [f"cuda:{i}" for i in range(gpus)]
    return names[local_rank] if len(names) >= ranks_here else "cpu"


def from_a_device(local_rank, ranks_here, gpus):
    return str(torch.device("cuda", local_rank)) if ranks_here <= gpus else str(torch.device("cpu"))


def formatted(local_rank, ranks_here, gpus, name="cuda:{}"):
    return ("cpu", name.format(local_rank))[gpus >= ranks_here]


@pytest.mark.parametrize("answer", [with_else, from_a_list, from_a_device, formatted])
def test_rank_device_in_other_styles(answer):
    assert check.rank_device(answer)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda local_rank, ranks_here, gpus: "cuda:0" if gpus else "cpu", "4 ranks on a machine with 8 GPUs"),
        (lambda local_rank, ranks_here, gpus: f"cuda:{local_rank}" if local_rank < gpus else "cpu", "with 2 GPUs"),
        (lambda local_rank, ranks_here, gpus: f"cuda:{local_rank % gpus}" if gpus else "cpu", "with 2 GPUs"),
        (lambda local_rank, ranks_here, gpus: f"cuda:{local_rank}" if ranks_here < gpus else "cpu", "with 4 GPUs"),
        (lambda local_rank, ranks_here, gpus: f"cuda:{local_rank + 1}" if ranks_here <= gpus else "cpu", "8 GPUs"),
        (lambda local_rank, ranks_here, gpus: f"cuda:{local_rank}", "with 2 GPUs"),
        (lambda local_rank, ranks_here, gpus: "cpu", "with 8 GPUs"),
        (lambda local_rank, ranks_here, gpus: f"cuda{local_rank}" if ranks_here <= gpus else "cpu", "with 8 GPUs"),
        (lambda local_rank, ranks_here, gpus: torch.device("cuda", local_rank), "the name as a text"),
        (lambda local_rank, ranks_here, gpus: local_rank if ranks_here <= gpus else "cpu", "with 8 GPUs"),
        (lambda local_rank, ranks_here, gpus: f"cuda:{local_rank}" if ranks_here <= min(gpus, 8) else "cpu", "12 "),
    ],
)
def test_rank_device_wrong(answer, says):
    judge("rank_device", answer, says)


def test_stub():
    def rank_device(local_rank, ranks_here, gpus): ...

    assert check.rank_device(rank_device).state == "not yet"


# -- shared_sum -------------------------------------------------------------------------------------------------------


def with_arange(n):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = torch.arange(rank, n, ranks, device=pick()).sum()
    dist.all_reduce(share, op=dist.ReduceOp.SUM)
    return int(share)


def in_blocks(n):
    mine = torch.arange(n).tensor_split(dist.get_world_size())[dist.get_rank()]
    total = mine.sum().reshape(1).to(pick())
    dist.all_reduce(total)
    return numpy.int64(total.item())


def all_gathered(n):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor([sum(i for i in range(n) if i % ranks == rank)], device=pick())
    parts = [torch.zeros_like(mine) for _ in range(ranks)]
    dist.all_gather(parts, mine)
    return sum(parts)[0]


def to_one_and_back(n):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    begin, end = n * rank // ranks, n * (rank + 1) // ranks
    total = torch.tensor(sum(range(begin, end)), dtype=torch.int64, device=pick())
    dist.reduce(total, 0)
    dist.broadcast(total, 0)
    return total.item()


@pytest.mark.parametrize("answer", [with_arange, in_blocks, all_gathered, to_one_and_back])
def test_shared_sum_in_other_styles(answer):
    assert check.shared_sum(answer), str(check.shared_sum(answer))


def share(*, numbers=None, dtype=torch.int64, reduce=True, give=lambda total: total.item()):
    def shared_sum(n):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        mine = numbers(n, rank, ranks) if numbers else range(rank, n, ranks)
        total = torch.tensor(sum(mine), dtype=dtype, device=pick())
        if reduce:
            dist.all_reduce(total)
        return give(total)

    return shared_sum


def chunked(n):
    total = torch.arange(n).chunk(dist.get_world_size())[dist.get_rank()].sum().to(pick())
    dist.all_reduce(total)
    return total.item()


def only_on_rank_0(n):
    total = torch.tensor(sum(range(dist.get_rank(), n, dist.get_world_size())), device=pick())
    dist.reduce(total, 0)
    return total.item() if dist.get_rank() == 0 else None


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (share(reduce=False), "on 2 ranks, rank 0: another total"),
        (share(numbers=lambda n, rank, ranks: range(n)), "on 2 ranks, rank 0: another total"),
        (share(numbers=lambda n, rank, ranks: range(rank, n + 1, ranks)), "shared_sum(10) on 1 rank, rank 0: another"),
        (share(numbers=lambda n, r, ranks: range(r * (n // ranks), (r + 1) * (n // ranks))), "another total"),
        (share(dtype=torch.float32), "give a whole number"),
        (share(dtype=torch.float32, give=lambda total: int(total.item())), "shared_sum(1000003)"),
        (share(give=lambda total: float(total)), "45.0 (float)"),
        (share(give=lambda total: total.item() // dist.get_world_size()), "on 2 ranks"),
        (lambda n: n * (n - 1) // 2, "the ranks exchanged nothing"),
        (only_on_rank_0, "every rank returns the total"),
        (chunked, "IndexError"),
    ],
)
def test_shared_sum_wrong(answer, says):
    judge("shared_sum", answer, says)


def test_shared_sum_that_waits_for_ever(monkeypatch):
    monkeypatch.setattr(start_here, "TIME_LIMIT", 3.0)

    def shared_sum(n):
        total = torch.tensor(n)
        if dist.get_rank() == 0:
            dist.all_reduce(total)
        return total.item()

    assert check.shared_sum(shared_sum).state == "wrong"
