"""Every kind of use of several virtual cores, twice; STRESS=24 in the environment: 24 times, on 4 cores, too.

What can go wrong with virtual cores is a race, which shows in one run of hundreds.
"""

import os
import tempfile
from functools import partial

import pytest

pytest.importorskip("torch_xla")

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
from torch_xla.distributed.parallel_loader import MpDeviceLoader

from course_utils import xla
from course_utils.lessons import models

pytestmark = pytest.mark.slow

RUNS = int(os.environ.get("STRESS", 2))
BATCH = 16


def batches(steps: int, *shape: int):
    """Batches of this core's own, on its device."""
    source = torch.Generator().manual_seed(xr.global_ordinal())
    for _ in range(steps):
        x, y = torch.randn(BATCH, *shape, generator=source), torch.randint(10, (BATCH,), generator=source)
        yield x.to(torch_xla.device()), y.to(torch_xla.device())


def assert_replicas_equal(model: nn.Module) -> None:
    """Bit by bit, on every core."""
    mine = [parameter.detach().cpu() for parameter in model.parameters()]
    for theirs in xm.mesh_reduce("weights", mine, list):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)), "replicas differ"


def train(*, reads: str, barrier: bool = False, sharded: bool = False) -> None:
    """Steps on batches of its own on every core; the replicas stay equal. Sharded: what hooks send in backward."""
    model = models.mlp().to(torch_xla.device())
    model = XlaFullyShardedDataParallel(model) if sharded else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = optimizer.step if sharded else partial(xm.optimizer_step, optimizer, barrier=barrier)
    for x, y in batches(10, 64):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        step()
        if not barrier:
            torch_xla.sync()
        if reads == "on all cores" or (reads == "on one core" and xr.global_ordinal() == 0):
            assert float(loss) > 0
            assert "xla:" in str(loss)
    if not sharded:
        assert_replicas_equal(model)


def loader_and_checkpoint() -> None:
    core, cores = xr.global_ordinal(), xr.world_size()
    model = models.mlp(seed=core).to(torch_xla.device())
    xm.broadcast_master_param(model)
    optimizer, source = torch.optim.Adam(model.parameters(), lr=0.01), torch.Generator().manual_seed(0)
    rows = TensorDataset(torch.randn(512, 64, generator=source), torch.randint(10, (512,), generator=source))
    sampler = DistributedSampler(rows, num_replicas=cores, rank=core)
    loader = MpDeviceLoader(DataLoader(rows, BATCH, sampler=sampler, drop_last=True), torch_xla.device())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            xm.optimizer_step(optimizer)
            if step % 5 == 0:
                loss.item()
    assert_replicas_equal(model)
    folder = xm.mesh_reduce("folder", tempfile.mkdtemp() if core == 0 else "", max)
    xm.save(model.state_dict(), f"{folder}/model.pt")
    xm.rendezvous("saved")
    assert torch.equal(torch.load(f"{folder}/model.pt")["0.bias"], model[0].bias.detach().cpu())


def collectives() -> None:
    device, core, cores = torch_xla.device(), xr.global_ordinal(), xr.world_size()
    everyone = range(cores)
    x = torch.tensor([float(core), core + 1.0]).to(device)
    assert xm.all_reduce(xm.REDUCE_SUM, x).tolist() == [sum(everyone), sum(everyone) + cores]
    assert xm.all_reduce(xm.REDUCE_MAX, x).cpu().tolist() == [cores - 1, cores]
    scaled = x * core
    xm.all_reduce(xm.REDUCE_SUM, [scaled], scale=1 / cores)
    assert scaled[0].item() == pytest.approx(sum(k * k for k in everyone) / cores)
    gathered = [value for k in everyone for value in (k, k + 1)]
    assert xm.all_gather(x, 0).cpu().tolist() == gathered
    assert xm.all_gather(x, 0, pin_layout=False).cpu().tolist() == gathered
    part = xm.reduce_scatter(xm.REDUCE_SUM, torch.arange(2.0 * cores).to(device), 1.0, 0, cores)
    assert part.cpu().tolist() == [cores * 2 * core, cores * (2 * core + 1)]
    ring = xm.collective_permute(x, [[k, (k + 1) % cores] for k in everyone])
    assert ring.cpu().tolist() == [(core - 1) % cores, (core - 1) % cores + 1]
    assert xm.mesh_reduce("sum", core, sum) == sum(everyone)
    assert xm.rendezvous("payload", str(core).encode()) == [str(k).encode() for k in everyone]


def reads_of_all_kinds() -> None:
    model = models.mlp().to(torch_xla.device())
    for x, _ in batches(3, 64):
        total = xm.all_reduce(xm.REDUCE_SUM, model(x).detach().pow(2).mean())  # pending, a collective in it
        assert total > 0
        assert f"{total:.3f}" != "0.000"
        assert total.to("cpu").item() == total.cpu().item() == float(total) == total.tolist()
        ones = torch.ones(2).to(total.device)
        assert torch.equal(xm.all_reduce(xm.REDUCE_SUM, ones), xr.world_size() * ones)
        torch_xla.sync()


def autocast_and_accumulation() -> None:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 10)]
    model = nn.Sequential(*layers).to(torch_xla.device())
    xm.broadcast_master_param(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(batches(8, 1, 8, 8)):
        with torch.autocast("xla", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        (loss / 2).backward()
        if step % 2:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            xm.optimizer_step(optimizer)
            optimizer.zero_grad()
        torch_xla.sync()
        loss.item()
    assert_replicas_equal(nn.ModuleList([layers[0], layers[-1]]))


USES = {
    "steps": partial(train, reads="never"),
    "steps, each read": partial(train, reads="on all cores", barrier=True),
    "steps, read on one core": partial(train, reads="on one core"),
    "steps, sharded": partial(train, reads="on all cores", sharded=True),
    "loader and checkpoint": loader_and_checkpoint,
    "collectives": collectives,
    "reads of all kinds": reads_of_all_kinds,
    "autocast and accumulation": autocast_and_accumulation,
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("cores", (2, 8) if RUNS <= 2 else (2, 4, 8))
def test_no_hang_no_crash_and_right(name: str, cores: int) -> None:
    for _ in range(RUNS):
        xla.launch(USES[name], cores=cores, time_limit=600)
