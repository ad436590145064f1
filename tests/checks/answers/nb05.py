"""Answers to the exercises of notebook 05."""

import numpy as np
import torch
import torch.distributed as dist

from course_utils.checks.instruments import everyones
from course_utils.checks.nb05_ranks_and_collectives import mean_over_ranks, ring_all_reduce


def two_calls(losses):
    total, count = losses.sum(), torch.tensor(float(len(losses)), device=losses.device)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count  # a 0-d tensor


def with_objects(losses):
    return np.concatenate(everyones(losses.tolist())).mean()  # a number of numpy


def nan_without_losses(losses):
    total = torch.stack([losses.mean() * len(losses), losses.new_tensor(len(losses))])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def mean_of_means(losses):
    mean = losses.mean()
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()


def in_place(losses):
    mean = mean_over_ranks(losses)
    losses.zero_()
    return mean


def only(which):
    """The mean of those losses that `which` keeps."""
    return lambda losses: mean_over_ranks(which(losses))


def by_doubling(losses):
    """Exchanges with rank ^ 1, rank ^ 2, …: right for powers of two."""
    rank, ranks, k = dist.get_rank(), dist.get_world_size(), 1
    mine = torch.stack([losses.sum(), losses.new_tensor(float(len(losses)))])
    while k < ranks:
        if rank ^ k < ranks:
            theirs = torch.empty_like(mine)
            started_first(mine, rank ^ k, theirs, rank ^ k)
            mine = mine + theirs
        k *= 2
    return (mine[0] / mine[1]).item()


def uneven(losses):
    dist.all_reduce(losses)
    return losses.mean().item()


def ring(exchange, cut=torch.Tensor.tensor_split, way=1, room=torch.empty_like):
    """A ring all-reduce; `exchange` sends to one neighbour and receives from the other."""

    def ring_all_reduce(tensor):
        p = dist.get_world_size()
        rank, chunks = dist.get_rank(), cut(tensor, p)
        for step in range(2 * (p - 1)):
            leaving = chunks[(way * rank - step - 1) % p]
            target = chunks[(way * rank - step - 2) % p]
            arriving = room(target)
            exchange(leaving, (rank + way) % p, arriving, (rank - way) % p)
            if step < p - 1:
                arriving += target
            target.copy_(arriving)

    return ring_all_reduce


def started_first(leaving, to, arriving, source):
    sending = dist.isend(leaving, to)
    dist.recv(arriving, source)
    sending.wait()


def blocking(sends_first):
    def exchange(leaving, to, arriving, source):
        calls = (dist.send, leaving, to), (dist.recv, arriving, source)
        for call, tensor, other in calls if sends_first() else calls[::-1]:
            call(tensor, other)

    return exchange


def own_slices(tensor, p):
    return [tensor[len(tensor) * i // p : len(tensor) * (i + 1) // p] for i in range(p)]


def everything_every_time(tensor):
    rank, p, passing = dist.get_rank(), dist.get_world_size(), tensor.clone()
    for _ in range(p - 1):
        arriving = torch.empty_like(tensor)
        started_first(passing, (rank + 1) % p, arriving, (rank - 1) % p)
        tensor += arriving
        passing = arriving


def changed(change, before=torch.clone):
    """A ring whose tensor is changed a little, before it or after it."""

    def ring_all_reduce(tensor):
        sums = before(tensor)
        ring(started_first)(sums)
        tensor.copy_(change(sums))

    return ring_all_reduce


def without_its_empty_chunk(leaving, to, arriving, source):
    if len(leaving):  # and yet waits for what the other does not send
        started_first(leaving, to, arriving, source)


all_send_first = ring(blocking(lambda: True))
not_when_empty = ring(without_its_empty_chunk)
RIGHT = {
    "mean_over_ranks": [two_calls, with_objects],
    "ring_all_reduce": [
        ring(started_first),
        ring(blocking(lambda: dist.get_rank() == 0), own_slices),
    ],
}
WRONG = {
    "mean_over_ranks": [
        mean_of_means,
        in_place,
        nan_without_losses,
        uneven,
        by_doubling,
        only(lambda losses: losses[losses != 0]),
        only(torch.Tensor.half),
        only(lambda losses: losses[:100]),  # as where there is room for so many of each rank
    ],
    "ring_all_reduce": [
        everything_every_time,
        ring(started_first, torch.Tensor.chunk),
        ring(started_first, way=-1),
        ring(started_first, room=lambda chunk: torch.empty(len(chunk), device=chunk.device)),
        dist.all_reduce,
        lambda tensor: ring_all_reduce(tensor.clone()),
        all_send_first,
        changed(torch.round),
        changed(torch.clone, torch.Tensor.float),
        changed(torch.clone, torch.Tensor.double),
        not_when_empty,
    ],
}
HANGS = {all_send_first, not_when_empty, uneven}
