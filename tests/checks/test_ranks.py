"""The exercises on ranks and collectives: right answers in many styles pass, wrong ones fail in true words."""

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course_utils.checks import ranks as module
from tests.checks.judging import judge, solved


def where():
    return dist.get_rank(), dist.get_world_size()


@pytest.fixture
def soon(monkeypatch):
    """What hangs, hangs for six seconds."""
    monkeypatch.setattr(module, "SECONDS", 6.0)


# -- broadcast ---------------------------------------------------------------------------------------------------------


def tree(tensor, src):
    rank, p = where()
    mine, step = (rank - src) % p, 1
    while step < p:
        if mine < step and mine + step < p:
            dist.send(tensor, (rank + step) % p)
        elif step <= mine < 2 * step:
            dist.recv(tensor, (rank - step) % p)
        step *= 2


def chain(tensor, src):
    rank, p = where()
    if rank != src:
        dist.recv(tensor, (rank - 1) % p)
    if (rank + 1) % p != src:
        dist.send(tensor, (rank + 1) % p)


def all_at_once(tensor, src):
    rank, p = where()
    if rank == src:
        for work in [dist.isend(tensor, other) for other in range(p) if other != src]:
            work.wait()
    else:
        dist.irecv(tensor, src).wait()


def in_a_batch(tensor, src):
    rank, p = where()
    others = [other for other in range(p) if other != src]
    sends = [dist.P2POp(dist.isend, tensor, other) for other in others]
    for work in dist.batch_isend_irecv(sends if rank == src else [dist.P2POp(dist.irecv, tensor, src)]):
        work.wait()


def from_anybody(tensor, src):
    rank, p = where()
    if rank != src:
        return dist.recv(tensor)
    return [dist.send(tensor, other) for other in set(range(p)) - {src}]


@pytest.mark.parametrize("answer", [module.broadcast_by_hand, tree, chain, all_at_once, in_a_batch, from_anybody])
def test_broadcast_right(answer):
    solved("broadcast_by_hand", answer)


def ready_made(tensor, src):
    dist.broadcast(tensor, src)


def as_an_object(tensor, src):
    box = [tensor]
    dist.broadcast_object_list(box, src)
    tensor.copy_(box[0])


def from_rank_0(tensor, src):
    module.broadcast_by_hand(tensor, 0)


def lost(tensor, src):
    module.broadcast_by_hand(tensor if dist.get_rank() == src else torch.empty_like(tensor), src)


def one_number(tensor, src):
    number = tensor[:1].clone()
    module.broadcast_by_hand(number, src)
    tensor.fill_(number.item())


def only_the_ends(tensor, src):
    rank, p = where()
    step = 1 if src == 0 else -1
    if rank != src:
        dist.recv(tensor, rank - step)
    if 0 <= rank + step < p:
        dist.send(tensor, rank + step)


def only_the_next(tensor, src):
    rank, p = where()
    if rank == src:
        dist.send(tensor, (src + 1) % p)
    else:
        dist.recv(tensor, src)


def returned_instead(tensor, src):
    tensor = tensor.clone()
    module.broadcast_by_hand(tensor, src)
    return tensor


def added(tensor, src):
    arriving = tensor.clone()
    module.broadcast_by_hand(arriving, src)
    tensor += arriving


def raises(tensor, src):
    return tensor.nonsense()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ready_made, "a collective: broadcast"),
        (as_an_object, "a collective: broadcast"),
        (from_rank_0, "2 ranks, src=1: rank 0's tensor"),
        (lost, "2 ranks, src=0: rank 1's tensor"),
        (one_number, "2 ranks, src=0: rank 0's tensor"),
        (only_the_ends, "of 3 "),
        (only_the_next, "wait in recv here"),
        (returned_instead, "2 ranks, src=0: rank 1's tensor"),
        (added, "2 ranks, src=0: rank 0's tensor"),
        (raises, "return tensor.nonsense()"),
    ],
)
@pytest.mark.usefixtures("soon")
def test_broadcast_wrong(answer, words):
    judge("broadcast_by_hand", answer, words)


# -- mean --------------------------------------------------------------------------------------------------------------


def two_calls(losses):
    total, count = losses.sum(), torch.tensor(float(len(losses)), device=losses.device)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count  # a 0-d tensor


def with_objects(losses):
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, losses.tolist())
    return np.mean(list(itertools.chain(*everyones)))  # a number of numpy


def padded(losses):
    mine = torch.zeros(100, device=losses.device)
    mine[: len(losses)] = losses
    mine[-1] = len(losses)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    whole = torch.stack(everyones)
    return np.float32((whole[:, :-1].sum() / whole[:, -1].sum()).item())


def in_float64(losses):
    total = torch.tensor([losses.double().sum(), len(losses)], dtype=torch.float64, device=losses.device)
    dist.all_reduce(total)
    return float(total[0] / total[1])


@pytest.mark.parametrize("answer", [module.mean_over_ranks, two_calls, with_objects, padded, in_float64])
def test_mean_right(answer):
    solved("mean_over_ranks", answer)


def mean_of_means(losses):
    mean = losses.mean()
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()


def added_up(losses):
    total = losses.sum()
    dist.all_reduce(total)
    return total.item()


def by_the_ranks(losses):
    return added_up(losses) / dist.get_world_size()


def middle(losses):
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, losses.tolist())
    return float(np.median(list(itertools.chain(*everyones))))


def rounded(losses):
    return round(module.mean_over_ranks(losses), 1)


def in_place(losses):
    mean = module.mean_over_ranks(losses)
    losses.zero_()
    return mean


def on_rank_0(losses):
    mean = module.mean_over_ranks(losses)
    return mean if dist.get_rank() == 0 else None


def both_numbers(losses):
    total = torch.stack([losses.sum(), losses.new_tensor(len(losses))])
    dist.all_reduce(total)
    return total


def uneven(losses):
    dist.all_reduce(losses)
    return losses.mean().item()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (mean_of_means, "2 ranks with [6, 5] losses: rank 0's mean: off by"),
        (lambda losses: losses.mean().item(), "rank 0's mean: off by"),
        (added_up, "rank 0's mean: off by"),
        (by_the_ranks, "rank 0's mean: off by"),
        (middle, "rank 0's mean: off by"),
        (rounded, "rank 0's mean: off by"),
        (in_place, "rank 0's losses afterwards, which were not to change"),
        (on_rank_0, "Rank 1 returned nothing"),
        (both_numbers, "a number was expected, this is a tensor"),
        (uneven, "rank"),  # gloo aborts, hangs or adds up what it reads, as it happens
    ],
)
@pytest.mark.usefixtures("soon")
def test_mean_wrong(answer, words):
    judge("mean_over_ranks", answer, words)


# -- ring --------------------------------------------------------------------------------------------------------------


def ring(exchange, cut=torch.Tensor.tensor_split, way=1):
    """A ring all-reduce with its own way to send `leaving` to one neighbour and receive `arriving` from the other."""

    def ring_all_reduce(tensor):
        rank, p = where()
        chunks, me = cut(tensor, p), way * rank % p
        for step in range(2 * (p - 1)):
            leaving, target = chunks[(me - step - 1) % p], chunks[(me - step - 2) % p]
            arriving = torch.empty_like(target)
            exchange(leaving, (rank + way) % p, arriving, (rank - way) % p)
            target.copy_(arriving + (target if step < p - 1 else 0))

    return ring_all_reduce


def started_first(leaving, to, arriving, source):
    sending = dist.isend(leaving, to)
    dist.recv(arriving, source)
    sending.wait()


def both_started(leaving, to, arriving, source):
    for work in (dist.isend(leaving, to), dist.irecv(arriving, source)):
        work.wait()


def rank_0_sends_first(leaving, to, arriving, source):
    if dist.get_rank() == 0:
        dist.send(leaving, to)
        dist.recv(arriving, source)
    else:
        dist.recv(arriving, source)
        dist.send(leaving, to)


def own_slices(tensor, p):
    ends = [len(tensor) * i // p for i in range(p + 1)]
    return [tensor[a:b] for a, b in itertools.pairwise(ends)]


RINGS = [ring(started_first), ring(both_started), ring(rank_0_sends_first), ring(started_first, own_slices)]


@pytest.mark.parametrize("answer", [module.ring_all_reduce, *RINGS])
def test_ring_right(answer):
    solved("ring_all_reduce", answer)


def only_half(tensor):
    rank, p = where()
    chunks = tensor.tensor_split(p)
    for step in range(p - 1):
        arriving = torch.empty_like(chunks[(rank - step - 2) % p])
        started_first(chunks[(rank - step - 1) % p], (rank + 1) % p, arriving, (rank - 1) % p)
        chunks[(rank - step - 2) % p].add_(arriving)


def everything_every_time(tensor):
    rank, p = where()
    passing = tensor.clone()
    for _ in range(p - 1):
        arriving = torch.empty_like(tensor)
        started_first(passing, (rank + 1) % p, arriving, (rank - 1) % p)
        tensor += arriving
        passing = arriving


def through_rank_0(tensor):
    rank, p = where()
    if rank > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    arriving = torch.empty_like(tensor)
    for other in range(1, p):
        dist.recv(arriving, other)
        tensor += arriving
    for other in range(1, p):
        dist.send(tensor, other)


def all_send_first(leaving, to, arriving, source):
    dist.send(leaving, to)
    dist.recv(arriving, source)


def in_a_new_tensor(tensor):
    tensor = tensor.clone()
    module.ring_all_reduce(tensor)
    return tensor


def averaged(tensor):
    module.ring_all_reduce(tensor)
    tensor /= dist.get_world_size()


def never_added(leaving, to, arriving, source):
    started_first(leaving, to, arriving, source)
    arriving.zero_()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda tensor: dist.all_reduce(tensor), "a collective: all-reduce"),
        (only_half, "2 ranks, 12 numbers: rank 0's tensor: off by"),
        (everything_every_time, "3 ranks, 12 numbers: rank 0 sends more than 2(p - 1) chunks"),
        (through_rank_0, "rank 0 sends"),
        (ring(all_send_first), "wait in send"),
        (ring(started_first, torch.Tensor.chunk), "raised IndexError"),
        (ring(started_first, way=-1), "sends to its right neighbour only"),
        (in_a_new_tensor, "rank 0's tensor: off by"),
        (averaged, "rank 0's tensor: off by"),
        (ring(never_added), "rank 0's tensor: off by"),
    ],
)
@pytest.mark.usefixtures("soon")
def test_ring_wrong(answer, words):
    judge("ring_all_reduce", answer, words)
