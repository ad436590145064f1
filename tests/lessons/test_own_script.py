"""The scripts of notebook 22: the conversion trains as the script for one device does."""

from unittest import mock

import pytest
import torch
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import RankError, launch
from course_utils.lessons import many, solo

OPTIONS = ["--epochs=1", "--batch=60", "--workers=0", "--dropout=0", "--shift=0", "--norm=group"]
OPTIONS += ["--precision=float64", "--device=cpu"]


def in_order_of_the_sampler(rows, batch, *, shuffle=False, **options):
    sampler = DistributedSampler(rows, 1, 0, drop_last=True) if shuffle else None
    return DataLoader(rows, batch, sampler=sampler, **options)


def weights(script, options):
    return parameters_to_vector(script.main(options).parameters()).detach()


def test_many_is_solo(tmp_path):
    options = [*OPTIONS, f"--cache={tmp_path / 'digits.pt'}"]
    with mock.patch.object(solo, "DataLoader", in_order_of_the_sampler):
        expected = weights(solo, [*options, f"--out={tmp_path / 'solo'}"])
    out = f"--out={tmp_path / 'many'}"
    for found in launch(weights, many, [*options, out], ranks=3, device="cpu").results:
        torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)
    files = {file.name for file in (tmp_path / "many").iterdir()}
    assert files == {"best.pt", "last.pt", "log.csv"}


def test_many_refuses_a_batch_that_cannot_be_dealt(tmp_path):
    options = ["--batch=63", f"--cache={tmp_path / 'digits.pt'}", f"--out={tmp_path}"]
    with pytest.raises(RankError, match="--batch 63: not divisible by 2 x 1 ranks"):
        launch(many.main, options, ranks=1, device="cpu")


@pytest.mark.parametrize("script", [solo, many])
def test_a_run_that_stopped_early_trains_no_further(script, tmp_path):
    options = [*OPTIONS, "--epochs=5", "--lr=0", "--patience=1", f"--out={tmp_path}"]
    options += [f"--cache={tmp_path / 'digits.pt'}"]
    for more in ([], ["--resume"]):
        launch(weights, script, [*options, *more], ranks=1, device="cpu")
        assert len((tmp_path / "log.csv").read_text().splitlines()) == 2
