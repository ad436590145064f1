"""Every kind of use of several virtual cores, twice; STRESS=24 in the environment: 24 times, on 4
cores, too.

What can go wrong with virtual cores is a race, which shows in one run of hundreds.
"""

import os
from functools import partial

import pytest

pytest.importorskip("torch_xla")

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

from course_utils import xla
from course_utils.checks.instruments import weights
from course_utils.lessons import models

pytestmark = pytest.mark.slow

RUNS = int(os.environ.get("STRESS", 2))


def batches(steps: int):
    """Batches of this core's own, on its device."""
    source = torch.Generator().manual_seed(xr.global_ordinal())
    for _ in range(steps):
        x, y = torch.randn(16, 64, generator=source), torch.randint(10, (16,), generator=source)
        yield x.to(torch_xla.device()), y.to(torch_xla.device())


def train(*, reads: str, barrier: bool = False, sharded: bool = False) -> None:
    """Steps on batches of its own on every core; the replicas stay equal. Sharded: what hooks send
    in backward.
    """
    model = models.mlp().to(torch_xla.device())
    model = XlaFullyShardedDataParallel(model) if sharded else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = optimizer.step if sharded else partial(xm.optimizer_step, optimizer, barrier=barrier)
    for x, y in batches(10):
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
        mine = weights(model).cpu()
        assert all(torch.equal(mine, theirs) for theirs in xm.mesh_reduce("weights", mine, list)), (
            "replicas differ"
        )


def collectives() -> None:
    device, core, cores = torch_xla.device(), xr.global_ordinal(), xr.world_size()
    everyone = range(cores)
    x = torch.tensor([float(core), core + 1.0]).to(device)
    assert xm.all_reduce(xm.REDUCE_SUM, x).tolist() == [sum(everyone), sum(everyone) + cores]
    gathered = [value for k in everyone for value in (k, k + 1)]
    assert xm.all_gather(x, 0).cpu().tolist() == gathered
    assert xm.mesh_reduce("sum", core, sum) == sum(everyone)


def reads_of_all_kinds() -> None:
    model = models.mlp().to(torch_xla.device())
    for x, _ in batches(3):
        # pending, a collective in it
        total = xm.all_reduce(xm.REDUCE_SUM, model(x).detach().pow(2).mean())
        assert total > 0
        assert f"{total:.3f}" != "0.000"
        assert total.to("cpu").item() == total.cpu().item() == float(total) == total.tolist()
        ones = torch.ones(2).to(total.device)
        assert torch.equal(xm.all_reduce(xm.REDUCE_SUM, ones), xr.world_size() * ones)
        torch_xla.sync()


USES = {
    "steps": partial(train, reads="never"),
    "steps, each read": partial(train, reads="on all cores", barrier=True),
    "steps, read on one core": partial(train, reads="on one core"),
    "steps, sharded": partial(train, reads="on all cores", sharded=True),
    "collectives": collectives,
    "reads of all kinds": reads_of_all_kinds,
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("cores", (2, 8) if RUNS <= 2 else (2, 4, 8))
def test_no_hang_no_crash_and_right(name, cores):
    for _ in range(RUNS):
        xla.launch(USES[name], cores=cores, time_limit=600)
