"""Answers to the exercises of notebook 05."""

import itertools

import numpy as np
import torch
import torch.distributed as dist

from course_utils.checks.nb05_ranks_and_collectives import mean_over_ranks, ring_all_reduce


def where():
    return dist.get_rank(), dist.get_world_size()


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


def of_this_rank(losses):
    return losses.mean().item()


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
    return round(mean_over_ranks(losses), 1)


def in_place(losses):
    mean = mean_over_ranks(losses)
    losses.zero_()
    return mean


def on_rank_0(losses):
    mean = mean_over_ranks(losses)
    return mean if dist.get_rank() == 0 else None


def both_numbers(losses):
    total = torch.stack([losses.sum(), losses.new_tensor(len(losses))])
    dist.all_reduce(total)
    return total


def uneven(losses):
    dist.all_reduce(losses)
    return losses.mean().item()


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


def ready_made_sum(tensor):
    dist.all_reduce(tensor)


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
    ring_all_reduce(tensor)
    return tensor


def averaged(tensor):
    ring_all_reduce(tensor)
    tensor /= dist.get_world_size()


def never_added(leaving, to, arriving, source):
    started_first(leaving, to, arriving, source)
    arriving.zero_()


a_ring_of_blocking_sends = ring(all_send_first)

RIGHT = {
    "mean_over_ranks": [two_calls, with_objects, padded, in_float64],
    "ring_all_reduce": [
        ring(started_first), ring(rank_0_sends_first, own_slices), ring(both_started), ring(started_first, own_slices),
    ],
}
WRONG = {
    "mean_over_ranks": [
        added_up, in_place, of_this_rank, by_the_ranks, middle, rounded, on_rank_0, both_numbers, uneven,
    ],
    "ring_all_reduce": [
        only_half, everything_every_time, ready_made_sum, through_rank_0, a_ring_of_blocking_sends, in_a_new_tensor,
        averaged, ring(started_first, torch.Tensor.chunk), ring(started_first, way=-1), ring(never_added),
    ],
}
HANGS = {a_ring_of_blocking_sends, uneven}
