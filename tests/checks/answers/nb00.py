"""Answers to the exercises of notebook 00."""

import numpy
import torch
import torch.distributed as dist

from course_utils import pick


def from_a_list(local_rank, ranks_here, gpus):
    names = [f"cuda:{i}" for i in range(gpus)]
    return names[local_rank] if len(names) >= ranks_here else "cpu"


def from_a_device(local_rank, ranks_here, gpus):
    return str(torch.device("cuda", local_rank)) if ranks_here <= gpus else str(torch.device("cpu"))


def device_where(enough, name):
    return lambda local_rank, ranks_here, gpus: name(local_rank) if enough(ranks_here, gpus) else "cpu"


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


def share(numbers=lambda n, rank, ranks: range(rank, n, ranks), op=dist.ReduceOp.SUM, give=int):
    def shared_sum(n):
        total = torch.tensor(sum(numbers(n, dist.get_rank(), dist.get_world_size())), device=pick())
        dist.all_reduce(total, op=op)
        return give(total)

    return shared_sum


def some_leave_early(n):
    return 0 if dist.get_rank() >= n else share()(n)


RIGHT = {"rank_device": [from_a_list, from_a_device], "shared_sum": [in_blocks, all_gathered]}
WRONG = {
    "rank_device": [
        device_where(lambda ranks, gpus: ranks < gpus, "cuda:{}".format),
        device_where(lambda ranks, gpus: ranks <= gpus, lambda rank: torch.device("cuda", rank)),
    ],
    "shared_sum": [
        lambda n: n * (n - 1) // 2, share(lambda n, rank, ranks: range(n), op=dist.ReduceOp.MAX), share(give=float),
        share(lambda n, rank, ranks: torch.arange(rank, n, ranks).tolist()), some_leave_early,
    ],
}
HANGS = {some_leave_early}
