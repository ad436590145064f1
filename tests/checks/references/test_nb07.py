"""The solutions of notebook 07 against one process with all the data."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course_utils import launch
from course_utils.checks.instruments import batch, weights
from course_utils.checks.nb07_ddp_pitfalls import train_and_save, train_uneven
from course_utils.lessons.models import mlp


def alone(steps, **options):
    """The weights of one process after steps on lists of batches: the mean of their losses over
    `over`.
    """
    network = mlp()
    optimizer = torch.optim.SGD(network.parameters(), **options)
    for batches, over in steps:
        optimizer.zero_grad()
        (sum(cross_entropy(network(x.cpu()), y.cpu()) for x, y in batches) / over).backward()
        optimizer.step()
    return weights(network)


def test_train_uneven_counts_the_batches_that_are_left_as_thirds():
    batches = [[batch(10 * rank + i) for i in range(count)] for rank, count in enumerate((1, 3, 2))]
    expected = alone(
        [([mine[i] for mine in batches if i < len(mine)], 3) for i in range(3)], lr=0.1
    )
    found = launch(
        lambda: weights(train_uneven(batches[dist.get_rank()])).cpu(), ranks=3, show=False
    ).results
    torch.testing.assert_close(found, 3 * [expected])


def test_train_and_save_saves_what_all_batches_give(tmp_path):
    batches, path = (
        [[batch(10 * rank + i) for i in range(2)] for rank in range(2)],
        str(tmp_path / "model.pt"),
    )
    found = launch(
        lambda: train_and_save(batches[dist.get_rank()], path), ranks=2, show=False
    ).results
    expected = alone([(step, 2) for step in zip(*batches, strict=True)], lr=0.1)
    for state in (*found, torch.load(path)):
        torch.testing.assert_close(
            torch.cat([tensor.flatten().cpu() for tensor in state.values()]), expected
        )
