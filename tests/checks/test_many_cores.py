"""The exercise on replicas on many TPU cores: right answers in other styles pass, wrong ones fail in words."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch_xla")

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_utils import check, xla
from course_utils.lessons import models
from tests.checks.rounded import rounded


@pytest.fixture(autouse=True, scope="module")
def setup():
    xla.setup()


def test_solution():
    verdict = check.train_replica(check.train_replica.published)
    assert verdict, str(verdict)


def replica(*, rank=None, seed=None, broadcast=True, reduce=True, back=lambda model: model, cores=None, epochs=None,
            step=None, loader=True, sampler=None):
    """A `train_replica` in another style, or with faults."""

    def train_replica(dataset, times):
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        core, device, world = xr.global_ordinal(), torch_xla.device(), cores or xr.world_size()
        model = models.mlp(seed=core if seed is None else seed).to(device)
        if broadcast:
            xm.broadcast_master_param(model)
        if sampler is None:
            chosen = DistributedSampler(dataset, world, core if rank is None else rank, shuffle=False)
            batches = DataLoader(dataset, 8, sampler=chosen)
        else:
            batches = sampler(dataset, world, core)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(epochs or times):
            for x, y in MpDeviceLoader(batches, device) if loader else batches:
                optimizer.zero_grad()
                cross_entropy(model(x.to(device)), y.to(device)).backward()
                if step:
                    step(optimizer, world)
                elif reduce:
                    xm.optimizer_step(optimizer)
                else:
                    optimizer.step()
        return back(model)

    return train_replica


def by_hand(optimizer, world):
    import torch_xla
    import torch_xla.core.xla_model as xm

    xm.all_reduce(xm.REDUCE_SUM, [p.grad for p in optimizer.param_groups[0]["params"]], scale=1 / world)
    optimizer.step()
    torch_xla.sync()


def reduce_then_step(optimizer, world):
    import torch_xla.core.xla_model as xm

    xm.reduce_gradients(optimizer)
    optimizer.step()


def with_a_barrier(optimizer, world):
    import torch_xla.core.xla_model as xm

    xm.optimizer_step(optimizer, barrier=True)


def summed(optimizer, world):
    import torch_xla.core.xla_model as xm

    xm.all_reduce(xm.REDUCE_SUM, [p.grad for p in optimizer.param_groups[0]["params"]])
    optimizer.step()


def strided(dataset, world, core):
    return DataLoader(Subset(dataset, range(core, len(dataset), world)), 8)


def once_read(dataset, world, core):
    """The batches are made once and used in every epoch."""
    return list(strided(dataset, world, core))


def chunks(dataset, world, core):
    return DataLoader(Subset(dataset, range(len(dataset))[core * 16 : core * 16 + 16]), 8)


def smaller(dataset, world, core):
    return DataLoader(Subset(dataset, range(core, len(dataset), world)), 4)


def named(value: object) -> str:
    """The name of a case, the same in every process."""
    return re.sub(r"<function (\S+) at 0x\w+>", r"\1", str(value))


@pytest.mark.parametrize(
    "style",
    [
        {"seed": 0, "broadcast": False}, {"step": by_hand, "loader": False}, {"step": reduce_then_step},
        {"step": with_a_barrier, "loader": False}, {"sampler": strided}, {"sampler": once_read},
        {"back": lambda model: model.cpu()},
    ],
    ids=named,
)
def test_right_in_other_styles(style):
    verdict = check.train_replica(replica(**style))
    assert verdict, str(verdict)


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"rank": 0}, "All 3 cores read the same rows"),
        ({"broadcast": False}, "Cores 0 and 1 end with different weights"),
        ({"reduce": False}, "Cores 0 and 1 end with different weights"),
        ({"rank": 0, "broadcast": False, "reduce": False}, "All 3 cores read the same rows"),
        ({"cores": 4}, "rows that all cores together read"),
        ({"epochs": 2}, "not to one process that takes the whole batches for 3 epochs"),
        ({"step": summed}, "not to one process"),
        ({"seed": 5, "broadcast": False}, "not to one process"),
        ({"sampler": chunks}, "in the order of DistributedSampler"),
        ({"sampler": smaller}, "not to one process"),
        ({"back": lambda model: model.state_dict()}, "what train_replica(dataset, epochs) returns"),
        ({"back": lambda model: list(model.parameters())}, "what train_replica(dataset, epochs) returns"),
    ],
    ids=named,
)
def test_wrong(faults, words):
    verdict = check.train_replica(replica(**faults))
    assert verdict.state == "wrong"
    assert words in verdict.text
    assert verdict.expected
    assert verdict.got
    assert "course_utils" not in str(verdict)


def test_returns_nothing():
    assert check.train_replica(replica(back=lambda model: None)).state == "not yet"


def test_returns_a_model_on_one_core_only():
    def back(model):
        import torch_xla.runtime as xr

        return model if xr.global_ordinal() == 0 else None

    assert "Core 1 returned nothing" in check.train_replica(replica(back=back)).text


def test_a_core_that_skips_a_collective(monkeypatch):
    from course_utils.checks import many_cores

    monkeypatch.setitem(many_cores.SECONDS, "CPU", 4.0)

    def train_replica(dataset, epochs):
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        model = replica()(dataset, 0)
        if xr.global_ordinal() != 2:
            xm.rendezvous("all but one")
            next(model.parameters()).sum().item()
        return model

    verdict = check.train_replica(train_replica)
    assert verdict.state == "wrong"
    assert "core" in verdict.text


def without_gradients(optimizer, world):
    import torch_xla.core.xla_model as xm

    optimizer.zero_grad()
    xm.optimizer_step(optimizer)


def test_a_crash_of_torch_xla_is_explained():
    verdict = check.train_replica(replica(step=without_gradients))
    assert verdict.state == "wrong"
    assert "does zero_grad come between backward and the step?" in verdict.text


def coarse(monkeypatch):
    monkeypatch.setattr(xla, "tolerance", lambda fine=1e-5: 1000 * fine)


def test_products_rounded_as_on_a_tpu(monkeypatch):
    """A TPU rounds the factors of products to bfloat16: with the CPU's tolerance the published solution would fail."""
    answer = rounded(check.train_replica.published)
    assert check.train_replica(answer).state == "wrong"
    coarse(monkeypatch)
    assert check.train_replica(answer), "with a TPU's tolerance"
    for faults in ({"epochs": 2}, {"step": summed}):  # and that does not let faults through
        assert check.train_replica(rounded(replica(**faults))).state == "wrong"


@pytest.mark.parametrize("name", ["train_replica", "shard_batch", "shard_mlp"])
def test_one_core(name, monkeypatch):
    from course_utils.checks import many_cores

    monkeypatch.setattr(many_cores, "CORES", 1)
    monkeypatch.setattr(many_cores, "DEVICES", 1)
    verdict = getattr(check, name)(getattr(check, name).published)
    assert verdict.state == "wrong"
    assert 'xla.setup(device="CPU")' in verdict.text


def test_four_cores(monkeypatch):
    """As on a v4-8."""
    from course_utils.checks import many_cores

    monkeypatch.setattr(many_cores, "CORES", 4)
    monkeypatch.setattr(many_cores, "DEVICES", 4)
    for name in ("train_replica", "shard_batch", "shard_mlp"):
        assert getattr(check, name)(getattr(check, name).published)
