"""The solutions of notebook 07 against one process with all the data."""

import itertools

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course_utils import launch
from course_utils.checks.instruments import batch, weights
from course_utils.checks.nb07_ddp_pitfalls import train_and_save, train_uneven
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


def test_train_and_save_saves_what_all_batches_give(tmp_path):
    batches = dealt(2, 2)
    path = str(tmp_path / "model.pt")
    run = launch(lambda: train_and_save(batches[dist.get_rank()], path), ranks=2)
    for state in (*run.results, torch.load(path)):
        found = torch.cat([tensor.flatten().cpu() for tensor in state.values()])
        torch.testing.assert_close(found, alone(batches))
