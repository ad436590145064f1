"""Exercises of notebook 05, looked at on 2 to 4 real ranks: a mean, ring all-reduce."""

import torch
import torch.distributed as dist

from ..machine import pick
from ..ranks.traffic import Traffic
from .compare import AtMost
from .exercise import exercise
from .instruments import sends


def numbers(count: int) -> torch.Tensor:
    """Whole numbers of this rank's own, on its device."""
    torch.manual_seed(dist.get_rank())
    return torch.randint(100, (count,)).float().to(pick())


def mean_over_ranks(losses):
    """The mean of all losses of all ranks, the same float on every rank, however many each has."""
    total = torch.stack([losses.sum(), losses.new_tensor(losses.numel())])  # where the losses are
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@exercise(mean_over_ranks, ranks=(2, 3, 4))
def _(answer):
    rank = dist.get_rank()
    for counts in ((6, 5, 4, 3), (0, 300, 1, 3)):
        losses = 30 * (numbers(counts[rank]) / 100) ** 3 - 6  # a loss may be negative, or 0
        losses[1:3] = 0.0
        where = f"ranks with {list(counts[: dist.get_world_size()])} losses"
        yield f"{where}: the mean", answer(losses)
        yield f"{where}: the losses afterwards, which were not to change", losses
    yield "", "Every rank knows the true mean, however many losses each of them has."


def ring_all_reduce(tensor):
    """Overwrite `tensor` with the sum over all ranks; each rank only talks to its neighbours."""
    rank, p = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(p)  # views: writing into a chunk writes into the tensor
    for step in range(2 * (p - 1)):
        leaving, target = chunks[(rank - step - 1) % p], chunks[(rank - step - 2) % p]
        arriving = torch.empty_like(target)
        batch = (
            dist.P2POp(dist.irecv, arriving, (rank - 1) % p),
            dist.P2POp(dist.isend, leaving, (rank + 1) % p),
        )
        # nccl may hold a single send until its receiver is there
        for message in dist.batch_isend_irecv([*batch]):
            message.wait()
        if step < p - 1:  # reduce-scatter: add
            target += arriving
        else:  # all-gather: the sums go round
            target.copy_(arriving)


@exercise(ring_all_reduce, ranks=(2, 3, 4))
def _(answer):
    p = dist.get_world_size()
    whole = torch.int64
    for length, dtype in ((12, torch.float32), (5, whole), (1001, torch.float64), (2, whole)):
        tensor = (numbers(length) / 7 - 5).to(dtype)  # neither whole nor all positive
        if dtype == whole:
            tensor *= 3**35  # more digits than a float64 has
        with Traffic() as traffic, sends() as sent:
            answer(tensor)
        where = f"{length} numbers, {dtype}"
        yield f"{where}: the tensor", tensor, 1e-12 if dtype == torch.float64 else 1e-5
        digits = [number % 1000 for number in tensor.tolist() if dtype == whole]
        yield f"{where}: the last three digits", digits
        collectives = traffic.calls.keys() - {"send", "recv", "barrier"}
        words = "the collectives that it calls, where messages are asked for"
        yield f"{where}: {words}", sorted(collectives)
        yield f"{where}: the ranks that it sends to, in this ring", sorted(sent)
        most = 2 * (p - 1) * -(-length // p)
        yield f"{where}: those that it sends, of 2(p - 1) chunks", AtMost(sent.total(), most)
    yield (
        "",
        "The sum is right on 2, 3 and 4 ranks, and no rank sends more than 2(p - 1) chunks of its "
        "tensor.",
    )
