"""The published loop of notebook 22 against the notebook's own on one device, in the same order;
and the plan of an epoch against torch's sampler and loader.
"""

import itertools
from unittest import mock

import pytest
import torch
from torch.utils import data

from course_utils import launch
from course_utils.checks import nb22_your_own_script as nb22
from tests.files import ROOT, cells

NOTEBOOK = ROOT / "notebooks" / "22_your_own_script.ipynb"
loader = data.DataLoader


def in_order_of_the_sampler(rows, batch, *, shuffle=False, **options):
    sampler = data.DistributedSampler(rows, 1, 0, drop_last=True) if shuffle else None
    return loader(rows, batch, sampler=sampler, **options)


def train(function, folder, order):
    def build():
        return nb22.network(noisy=False)

    with mock.patch.object(data, "DataLoader", order):
        return function(lambda: nb22.datasets(spoilt=False), build, folder, 1, 24, 2, 9, False)


def test_convert_is_the_loop_of_the_notebook(tmp_path):
    [cell] = [cell for cell in cells(NOTEBOOK, "code") if "def convert(" in cell.source]
    names = dict(vars(nb22))
    exec(cell.source, names)
    alone = tmp_path / "alone"
    alone.mkdir()
    [expected] = train(names["convert"], alone, in_order_of_the_sampler)
    for [found] in launch(train, nb22.convert, tmp_path, loader, ranks=2, device="cpu").results:
        assert found == pytest.approx(expected, abs=1e-6)
    weights = torch.load(alone / "best.pt")
    for name, weight in torch.load(tmp_path / "best.pt").items():
        torch.testing.assert_close(weight, weights[name], atol=1e-12, rtol=0)


def test_plan_epoch_is_what_sampler_and_loader_do():
    for rows, batch, pieces, ranks in itertools.product(
        (7, 48, 109, 1438), (12, 24, 48), (1, 2, 3), (1, 2, 3, 4)
    ):
        if batch % (pieces * ranks):
            with pytest.raises(ValueError, match=f"^{batch} rows cannot be dealt to {ranks} "):
                nb22.plan_epoch(rows, batch, pieces, ranks)
            continue
        each, steps, left = nb22.plan_epoch(rows, batch, pieces, ranks)
        used = 0
        for rank in range(ranks):
            sampler = data.DistributedSampler(range(rows), ranks, rank, drop_last=rows > ranks)
            read = list(loader(range(rows), each, sampler=sampler, drop_last=True))
            assert steps == len(read) // pieces
            used += sum(map(len, read[: steps * pieces]))
        assert (steps * batch, left) == (used, rows - used)
