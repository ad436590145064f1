"""The published solutions of notebook 15 against the CPU, and against the loop that reads every
loss.
"""

import pytest

pytest.importorskip("torch_xla")

import torch
import torch_xla

from course_utils.checks.nb15_tpu_one_core import read_once, remove_recompiles


def test_remove_recompiles_is_the_mean_of_each_line():
    table, lines = torch.randn(40, 3), [torch.randint(40, (n,)) for n in (2, 64, 17)]
    means = remove_recompiles(lines, table.to(torch_xla.device())).cpu()
    torch.testing.assert_close(
        means, torch.stack([table[line].mean(0) for line in lines]), atol=1e-5, rtol=0
    )


def test_read_once_is_the_loop_that_reads():
    def losses(train):
        weight = torch.ones(4, device=torch_xla.device())

        def step(x, y):
            loss = (weight * x - y).square().mean()
            weight.sub_(x * loss)
            return loss

        batches = torch.arange(6.0).reshape(3, 2, 1).to(torch_xla.device())
        return train(step, [(x, y) for x, y in batches])

    assert losses(read_once) == pytest.approx(
        losses(lambda step, batches: [step(*batch).item() for batch in batches])
    )
