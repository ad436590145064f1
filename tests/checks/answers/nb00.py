"""Answers to the exercise of notebook 00."""

import torch
import torch.distributed as dist

from course_utils import pick


def in_blocks(n):
    mine = torch.arange(n).tensor_split(dist.get_world_size())[dist.get_rank()]
    total = mine.sum().reshape(1).to(pick())
    dist.all_reduce(total)
    return int(total)


def all_gathered(n):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor([sum(i for i in range(n) if i % ranks == rank)], device=pick())
    parts = [torch.zeros_like(mine) for _ in range(ranks)]
    dist.all_gather(parts, mine)
    return sum(parts).item()


def share(numbers=lambda n, rank, ranks: range(rank, n, ranks), op=dist.ReduceOp.SUM, give=int):
    def shared_sum(n):
        total = torch.tensor(sum(numbers(n, dist.get_rank(), dist.get_world_size())), device=pick())
        dist.all_reduce(total, op=op)
        return give(total)

    return shared_sum


def in_rounded_blocks(n, rank, ranks):
    """Wrong for three numbers on five ranks."""
    size = round(n / ranks)
    return range(rank * size, n if rank == ranks - 1 else (rank + 1) * size)


def the_rest_afterwards(n):
    """Equal blocks are shared; every rank adds the numbers that are left."""
    ranks = dist.get_world_size()
    size = n // ranks
    shared = share(lambda n, rank, ranks: range(rank * size, (rank + 1) * size))
    return shared(n) + sum(range(ranks * size, n))


def rank_0s_total(n):
    total = torch.tensor(0 if dist.get_rank() else sum(range(n)), device=pick())
    dist.broadcast(total, src=0)
    return total.item()


def some_leave_early(n):
    return 0 if dist.get_rank() >= n else share()(n)


def all_by_rank_0(n):
    total = torch.tensor(0 if dist.get_rank() else n * (n - 1) // 2, device=pick())
    dist.reduce(total, 0)
    dist.broadcast(total, 0)
    return total.item()


def all_told_by_each(n):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, sum(range(n)))
    return every[0]


def shortcut(n):
    return 0 if n < 2 else in_blocks(n)


def told_with_their_ranks(n):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    every = [None] * ranks
    dist.all_gather_object(every, (rank, sum(range(rank, n, ranks))))
    return sum(share for _, share in every)


RIGHT = {"shared_sum": [in_blocks, all_gathered, shortcut, told_with_their_ranks]}
WRONG = {
    "shared_sum": [
        lambda n: dist.barrier() or n * (n - 1) // 2,
        rank_0s_total,
        share(lambda n, rank, ranks: range(n), op=dist.ReduceOp.MAX),
        share(give=float),
        share(in_rounded_blocks),
        share(lambda n, rank, ranks: torch.arange(rank, n, ranks).tolist()),
        some_leave_early,
        the_rest_afterwards,
        all_by_rank_0,
        all_told_by_each,
        share(lambda n, rank, ranks: range(0 if rank else n)),
    ],
}
HANGS = {some_leave_early}
