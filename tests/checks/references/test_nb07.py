"""The solutions of notebook 07 against one process with all the data."""

import itertools

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils import launch
from course_utils.checks.instruments import batch, weights
from course_utils.checks.nb07_ddp_pitfalls import (
    mean_over_tokens,
    speaker,
    texts,
    train_uneven,
)
from course_utils.lessons.models import mlp


def dealt(*counts):
    """The batches of each rank."""
    return [[batch(10 * rank + i) for i in range(count)] for rank, count in enumerate(counts)]


def alone(batches):
    """The weights of one process that steps on the sum of all ranks' losses, by their number."""
    network = mlp()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for step in itertools.zip_longest(*batches):
        optimizer.zero_grad()
        there = filter(None, step)
        losses = [cross_entropy(network(x.cpu()), y.cpu()) for x, y in there]
        (sum(losses) / len(step)).backward()
        optimizer.step()
    return weights(network)


def test_train_uneven_counts_the_batches_that_are_left_as_thirds():
    batches = dealt(1, 3, 2)
    run = launch(lambda: weights(train_uneven(batches[dist.get_rank()])).cpu(), ranks=3)
    torch.testing.assert_close(run.results, 3 * [alone(batches)])


def test_mean_over_tokens_is_the_gradient_of_all_texts_in_one_batch():
    """Of one process that pads all texts to one length, and lets torch take the mean."""
    pieces = [[texts([3, 1], 0), texts([5], 1)], [texts([0], 2), texts([2, 4], 3)]]
    network = speaker().cpu()
    x, y = zip(*itertools.chain(*pieces), strict=True)
    wide = max(part.shape[1] for part in x)
    x = torch.cat([pad(part.cpu(), (0, wide - part.shape[1])) for part in x])
    y = torch.cat([pad(part.cpu(), (0, wide - part.shape[1]), value=-100) for part in y])
    cross_entropy(network(x).mT, y).backward()
    expected = torch.cat([p.grad.flatten() for p in network.parameters()])

    def ours(most):
        model = DDP(speaker())
        mean_over_tokens(model, pieces[dist.get_rank()], most)
        return torch.cat([p.grad.flatten() for p in model.parameters()]).cpu()

    torch.testing.assert_close(launch(ours, 1e3, ranks=2).results, 2 * [expected])
    clipped = launch(ours, 0.1, ranks=2).results
    torch.testing.assert_close(clipped, 2 * [0.1 * expected / expected.norm()])
