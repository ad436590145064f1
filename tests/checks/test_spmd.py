"""The exercises on many TPU cores: published solutions pass, plausible wrong answers fail in words."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_xla")

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import check, xla
from course_utils.lessons import models


@pytest.fixture(autouse=True, scope="module")
def setup():
    xla.setup()


@pytest.mark.parametrize("name", ["train_replica", "shard_batch", "shard_mlp"])
def test_solution(name):
    exercise = getattr(check, name)
    verdict = exercise(exercise.published)
    assert verdict, str(verdict)


def replica(*, rank=None, seed=None, broadcast=True, reduce=True, back=True):
    """A `train_replica` with faults."""

    def train_replica(dataset, epochs):
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        core, device = xr.global_ordinal(), torch_xla.device()
        model = models.mlp(seed=core if seed is None else seed).to(device)
        if broadcast:
            xm.broadcast_master_param(model)
        sampler = DistributedSampler(dataset, xr.world_size(), core if rank is None else rank, shuffle=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(epochs):
            for x, y in MpDeviceLoader(DataLoader(dataset, 8, sampler=sampler), device):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if reduce:
                    xm.optimizer_step(optimizer)
                else:
                    optimizer.step()
        return model if back else None

    return train_replica


def test_replica_with_one_seed_is_right_too():
    assert check.train_replica(replica(seed=0, broadcast=False))


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"rank": 0}, "All 4 cores read the same rows"),
        ({"broadcast": False}, "Cores 0 and 1 end with different weights"),
        ({"reduce": False}, "Cores 0 and 1 end with different weights"),
        ({"rank": 0, "broadcast": False, "reduce": False}, "All 4 cores read the same rows"),
    ],
    ids=str,
)
def test_replica_wrong(faults, words):
    verdict = check.train_replica(replica(**faults))
    assert verdict.state == "wrong"
    assert words in verdict.text
    assert verdict.expected
    assert verdict.got
    assert "course_utils" not in str(verdict)


def test_replica_that_returns_nothing():
    assert check.train_replica(replica(back=False)).state == "not yet"


def test_replica_of_another_start():
    verdict = check.train_replica(replica(seed=5, broadcast=False))
    assert "beside those of one process" in verdict.text


def test_replica_that_skips_a_collective_is_told_so(monkeypatch):
    from course_utils.checks import spmd

    monkeypatch.setattr(spmd, "SECONDS", 3.0)

    def train_replica(dataset, epochs):
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        model = replica(rank=xr.global_ordinal())(dataset, 0)
        if xr.global_ordinal() != 2:
            xm.rendezvous("all but one")
            next(model.parameters()).sum().item()
        return model

    verdict = check.train_replica(train_replica)
    assert verdict.state == "wrong"
    assert "core" in verdict.text


def marked(*marks):
    """Annotates by name: (tensor, names of the mesh's axes)."""

    def annotate(named, mesh):
        import torch_xla.distributed.spmd as xs

        for name, axes in marks:
            xs.mark_sharding(named[name], mesh, axes)

    return annotate


def batch(*marks):
    annotate = marked(*marks)

    def shard_batch(x, y, mesh):
        annotate({"x": x, "y": y}, mesh)

    return shard_batch


def mlp(*marks):
    annotate = marked(*marks)

    def shard_mlp(mlp, x, mesh):
        annotate({"x": x} | dict(mlp.named_parameters()), mesh)

    return shard_mlp


@pytest.mark.parametrize(
    ("answer", "what", "expected", "got"),
    [
        (batch(("x", ("data", None))), "y (32,)", "4 pieces along dim 0", "whole on every device"),
        (batch(("x", (None, "data")), ("y", ("data",))), "x (32, 16)", "4 pieces along dim 0", "4 pieces along dim 1"),
    ],
    ids=["labels whole", "columns"],
)
def test_shard_batch_wrong(answer, what, expected, got):
    verdict = check.shard_batch(answer)
    assert verdict.state == "wrong"
    assert what in verdict.text
    assert (verdict.expected, verdict.got) == (expected, got)


def test_shard_batch_that_raises_shows_the_line():
    def shard_batch(x, y, mesh):
        import torch_xla.distributed.spmd as xs

        xs.mark_sharding(y, mesh, ("data", None))

    verdict = check.shard_batch(shard_batch)
    assert verdict.state == "wrong"
    assert "Partition spec length (2) should be equal to the input rank (1)" in verdict.text
    assert 'xs.mark_sharding(y, mesh, ("data", None))' in verdict.text
    assert "course_utils" not in str(verdict)


UP, BIAS, DOWN = ("up.weight", ("model", None)), ("up.bias", ("model",)), ("down.weight", (None, "model"))
X = ("x", ("data", None))


@pytest.mark.parametrize(
    ("answer", "what", "got"),
    [
        (mlp(UP, BIAS, DOWN), "x (32, 16)", "whole on every device"),
        (mlp(X, UP, DOWN), "up.bias (64,)", "whole on every device"),
        (mlp(X, ("up.weight", (None, "model")), BIAS, DOWN), "up.weight (64, 16)", "2 pieces along dim 1"),
        (mlp(X, UP, BIAS, DOWN, ("down.bias", ("model",))), "down.bias (16,)", "2 pieces along dim 0"),
        (mlp(X, ("up.weight", ("data", "model"))), "up.weight", "2 pieces along dim 0 and 2 pieces along dim 1"),
    ],
    ids=["batch whole", "bias whole", "up by inputs", "last bias cut", "both dims"],
)
def test_shard_mlp_wrong(answer, what, got):
    verdict = check.shard_mlp(answer)
    assert verdict.state == "wrong"
    assert what in verdict.text
    assert verdict.got == got
    assert "course_utils" not in str(verdict)
