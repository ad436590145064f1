"""The solutions of notebook 07 against one process with all the data."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

from course_utils import launch, pick
from course_utils.checks.nb07_ddp_pitfalls import train_and_save, train_epochs, train_in_pieces, train_uneven
from course_utils.checks.probes import Rows, Steps, batch, weights
from course_utils.lessons.models import mlp


def alone(steps, **options):
    """The weights of one process after steps on lists of batches: the mean of their losses over `over`."""
    network = mlp()
    optimizer = torch.optim.SGD(network.parameters(), **options)
    for batches, over in steps:
        optimizer.zero_grad()
        (sum(cross_entropy(network(x.cpu()), y.cpu()) for x, y in batches) / over).backward()
        optimizer.step()
    return weights(network)


def test_train_epochs_reads_what_the_sampler_deals():
    def read():
        rows = Rows(10)
        with Steps() as steps:
            train_epochs(rows, 3)
        return rows.read(steps.inputs)

    for rank, rows in enumerate(launch(read, ranks=2, show=False).results):
        sampler, dealt = DistributedSampler(range(10), 2, rank, seed=1), []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            dealt += sampler
        assert rows == dealt


def test_train_uneven_counts_the_batches_that_are_left_as_thirds():
    batches = [[batch(10 * rank + i) for i in range(count)] for rank, count in enumerate((1, 3, 2))]
    expected = alone([([mine[i] for mine in batches if i < len(mine)], 3) for i in range(3)], lr=0.1)
    found = launch(lambda: weights(train_uneven(batches[dist.get_rank()])).cpu(), ranks=3, show=False).results
    torch.testing.assert_close(found, 3 * [expected])


def test_train_in_pieces_is_one_big_step():
    pieces = [[batch(10 * rank + i) for i in range(3)] for rank in range(2)]

    def trained():
        model = DDP(mlp().to(pick()))
        train_in_pieces(model, torch.optim.SGD(model.parameters(), lr=0.5), pieces[dist.get_rank()])
        return weights(model).cpu()

    expected = alone([([*pieces[0], *pieces[1]], 6)], lr=0.5)
    torch.testing.assert_close(launch(trained, ranks=2, show=False).results, 2 * [expected])


def test_train_and_save_saves_what_all_batches_give(tmp_path):
    batches, path = [[batch(10 * rank + i) for i in range(2)] for rank in range(2)], str(tmp_path / "model.pt")
    found = launch(lambda: train_and_save(batches[dist.get_rank()], path), ranks=2, show=False).results
    expected = alone([(step, 2) for step in zip(*batches, strict=True)], lr=0.1)
    for state in (*found, torch.load(path)):
        torch.testing.assert_close(torch.cat([tensor.flatten().cpu() for tensor in state.values()]), expected)
