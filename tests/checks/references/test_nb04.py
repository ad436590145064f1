"""The published solutions of notebook 04: the way there and back, and torch's own where there are
two GPUs.
"""

import pytest
import torch
from torch.nn import parallel

from course_utils.checks.nb04_dataparallel import gather, scatter


def test_gather_is_the_way_back_from_scatter():
    batch = {"x": torch.randn(11, 3), "inner": {"y": torch.arange(11)}}
    for devices in (["cpu"], ["cpu"] * 3, ["cpu"] * 20):
        there = scatter(batch, devices)
        assert sum(len(part["x"]) for part in there) == 11
        back = gather(there, "cpu")
        assert back["x"].equal(batch["x"])
        assert back["inner"]["y"].equal(batch["inner"]["y"])


@pytest.mark.gpus
def test_both_are_torchs_own():
    devices, batch = (
        ["cuda:0", "cuda:1"],
        (torch.randn(11, 3, device="cuda"), {"y": [torch.arange(11, device="cuda")]}),
    )
    ours, theirs = scatter(batch, devices), parallel.scatter(batch, [0, 1])
    torch.testing.assert_close(ours, list(theirs))
    torch.testing.assert_close(
        gather([x for x, _ in ours], "cuda:0"), parallel.gather([x for x, _ in theirs], 0)
    )
