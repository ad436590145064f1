"""The solutions of notebook 08 against the paper's figure and DDP with one whole optimizer."""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils import launch
from course_utils.checks import nb08_sharding as nb08
from course_utils.checks.nb08_sharding import shard_optimizer, zero_bytes


def test_zero_bytes_is_the_papers_figure():
    """Rajbhandari et al., 2020, figure 1: 7.5 billion parameters on 64 devices."""
    assert [round(zero_bytes(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)] == [
        120.0,
        31.4,
        16.6,
        1.9,
    ]


def trained(case, whole):
    make, _, sizes = nb08.CASES[case]
    model = nb08.layers(sizes)
    forward = DDP(model) if whole else model
    parameters = [*model.parameters()]
    step = (
        make([p for p in parameters if p.requires_grad]).step
        if whole
        else shard_optimizer(parameters, make)
    )
    for number in range(4):
        nb08.backward(forward, sizes[0], number)
        step()
    return [p.detach().cpu() for p in parameters]


def test_shard_optimizer_trains_as_ddp_with_the_whole_optimizer():
    for case in nb08.CASES:
        ours, expected = (launch(trained, case, whole, ranks=3).results for whole in (False, True))
        torch.testing.assert_close(ours, expected)
