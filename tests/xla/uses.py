"""Kinds of use of several TPU cores; each is a function that `xla.launch` runs on every core, and asserts its results.

test_stress.py runs them again and again: what can go wrong with virtual cores is a race, which shows in one run of
hundreds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, CLASSES, BATCH = 32, 10, 16


def network() -> nn.Module:
    """Equal on every core: from a generator of its own, since cores share torch's."""
    source = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source) * 0.05)
    return model


def batches(core: int, steps: int):
    """`steps` batches of this core's own, on its device."""
    import torch_xla

    source = torch.Generator().manual_seed(core)
    for _ in range(steps):
        x = torch.randn(BATCH, FEATURES, generator=source)
        y = torch.randint(0, CLASSES, (BATCH,), generator=source)
        yield x.to(torch_xla.device()), y.to(torch_xla.device())


def setup(optimizer: Callable = torch.optim.SGD):
    """(core, cores, model, optimizer) of this core."""
    import torch_xla
    import torch_xla.runtime as xr

    model = network().to(torch_xla.device())
    return xr.global_ordinal(), xr.world_size(), model, optimizer(model.parameters(), lr=0.01)


def assert_replicas_equal(model: nn.Module) -> None:
    """Bit by bit, on every core."""
    import torch_xla.core.xla_model as xm

    mine = [parameter.detach().cpu() for parameter in model.parameters()]
    for theirs in xm.mesh_reduce("weights", mine, list):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)), "replicas differ"


def train_wrapped(model: nn.Module, core: int) -> None:
    """A model that reduces its gradients by itself: plain steps, the loss read in each."""
    import torch_xla

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(core, 5):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        assert loss.item() > 0


def train(
    steps: int = 10, *, optimizer: Callable = torch.optim.SGD, read: str = "all", end: str = "sync", half: bool = False
) -> None:
    """Every core takes steps on batches of its own; the replicas stay equal."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    core, _, model, optimizer = setup(optimizer)
    for x, y in batches(core, steps):
        with torch_xla.step() if end == "step" else nullcontext():
            optimizer.zero_grad()
            with torch.autocast("xla", dtype=torch.bfloat16, enabled=half):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            assert model[0].weight.grad.dtype == torch.float32
            xm.optimizer_step(optimizer, barrier=end == "barrier")
        if end == "sync":
            torch_xla.sync()
        if read == "all" or (read == "first" and core == 0):
            assert float(loss) > 0
            assert "xla:" in str(loss)
    assert_replicas_equal(model)


def device_loader() -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    core, cores, model, optimizer = setup(torch.optim.Adam)
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(512, FEATURES, generator=source), torch.randint(0, CLASSES, (512,), generator=source)
    sampler = DistributedSampler(TensorDataset(x, y), num_replicas=cores, rank=core)
    loader = MpDeviceLoader(
        DataLoader(TensorDataset(x, y), BATCH, sampler=sampler, drop_last=True), torch_xla.device()
    )
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


def collectives() -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    device, core, cores = torch_xla.device(), xr.global_ordinal(), xr.world_size()
    everyone = range(cores)
    x = torch.tensor([float(core), core + 1.0]).to(device)
    assert xm.all_reduce(xm.REDUCE_SUM, x).tolist() == [sum(everyone), sum(everyone) + cores]
    assert xm.all_reduce(xm.REDUCE_MAX, x).cpu().tolist() == [cores - 1, cores]
    assert xm.all_reduce(xm.REDUCE_SUM, torch.ones(2).to(device) * core).tolist() == [sum(everyone)] * 2
    scaled = x.clone()
    xm.all_reduce(xm.REDUCE_SUM, [scaled], scale=1 / cores)
    assert scaled.tolist() == [(cores - 1) / 2, (cores + 1) / 2]
    gathered = [value for k in everyone for value in (k, k + 1)]
    assert xm.all_gather(x, 0).cpu().tolist() == gathered
    assert xm.all_gather(x, 0, pin_layout=False).cpu().tolist() == gathered
    whole = torch.arange(2.0 * cores).to(device)
    part = xm.reduce_scatter(xm.REDUCE_SUM, whole, 1.0, 0, cores)
    assert part.cpu().tolist() == [cores * 2 * core, cores * (2 * core + 1)]
    ring = xm.collective_permute(x, [[k, (k + 1) % cores] for k in everyone])
    assert ring.cpu().tolist() == [(core - 1) % cores, (core - 1) % cores + 1]
    mine = (torch.arange(float(cores)) + 100 * core).to(device)
    assert xm.all_to_all(mine, 0, 0, cores).cpu().tolist() == [100 * k + core for k in everyone]
    last = torch.tensor([float(core)]).to(device)
    xm.collective_broadcast([last], root_ordinal=cores - 1)
    assert last.item() == cores - 1
    if cores >= 4:
        halves = [list(range(cores // 2)), list(range(cores // 2, cores))]
        assert xm.all_reduce(xm.REDUCE_SUM, torch.ones(1).to(device), groups=halves).item() == cores // 2


def meetings() -> None:
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    core, cores = xr.global_ordinal(), xr.world_size()
    assert xm.mesh_reduce("sum", core, sum) == sum(range(cores))
    assert xm.rendezvous("payload", str(core).encode()) == [str(k).encode() for k in range(cores)]
    xm.rendezvous("empty")


def master_and_checkpoint() -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    model = nn.Linear(8, 8).to(torch_xla.device())  # each core another one
    xm.broadcast_master_param(model)
    assert_replicas_equal(model)
    folder = xm.mesh_reduce("folder", tempfile.mkdtemp() if xr.global_ordinal() == 0 else "", max)
    file = Path(folder) / "model.pt"
    xm.save(model.state_dict(), str(file))
    xm.rendezvous("saved")
    state = torch.load(file)
    assert state["weight"].device.type == "cpu"
    assert torch.equal(state["weight"], model.weight.detach().cpu())


def reads_of_all_kinds() -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm

    core, cores, model, _ = setup()
    for x, _ in batches(core, 3):
        total = xm.all_reduce(xm.REDUCE_SUM, model(x).detach().pow(2).mean())  # pending, a collective in it
        assert total > 0
        assert bool(total > 0)
        assert f"{total:.3f}" != "0.000"
        assert total.to("cpu").item() == total.cpu().item() == float(total) == total.tolist()
        ones = torch.ones(2).to(total.device)
        assert torch.equal(xm.all_reduce(xm.REDUCE_SUM, ones), cores * ones)
        torch_xla.sync()


def ddp() -> None:
    import torch.distributed as dist
    import torch_xla
    import torch_xla.distributed.xla_backend  # registers the backend "xla"

    dist.init_process_group("xla", init_method="xla://")
    core, cores, model, _ = setup()
    assert (dist.get_rank(), dist.get_world_size()) == (core, cores)
    total = torch.tensor([core + 1.5]).to(torch_xla.device())
    dist.all_reduce(total)
    torch_xla.sync()
    assert abs(total.item() - sum(k + 1.5 for k in range(cores))) < 1e-5
    train_wrapped(nn.parallel.DistributedDataParallel(model), core)
    assert_replicas_equal(model)


def fully_sharded() -> None:
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    core, _, model, _ = setup()
    train_wrapped(XlaFullyShardedDataParallel(model), core)


def autocast_and_accumulation() -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    device = torch_xla.device()
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, CLASSES)]
    model = nn.Sequential(*layers).to(device)
    xm.broadcast_master_param(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    source = torch.Generator().manual_seed(xr.global_ordinal())
    for step in range(8):
        x = torch.randn(BATCH, 1, 8, 8, generator=source).to(device)
        y = torch.randint(0, CLASSES, (BATCH,), generator=source).to(device)
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


def spmd(model_axis: int, cut: Callable) -> None:
    """One program on all devices: `cut(model, mesh)` cuts the model, the batch is cut along the axis "data".

    It ends with the weights of one process that takes the same batches.
    """
    import torch_xla
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    devices = xr.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(devices), (devices // model_axis, model_axis), ("data", "model"))

    def trained(model: nn.Module, place: Callable) -> torch.Tensor:
        optimizer, source = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.Generator().manual_seed(1)
        for _ in range(4):
            x = place(torch.randn(devices * BATCH, FEATURES, generator=source))
            y = place(torch.randint(0, CLASSES, (devices * BATCH,), generator=source))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            torch_xla.sync()
        return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()

    def sharded(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(torch_xla.device())
        xs.mark_sharding(tensor, mesh, ("data", *[None] * (tensor.dim() - 1)))
        return tensor

    ours = trained(cut(network().to(torch_xla.device()), mesh), sharded)
    alone = trained(network(), lambda tensor: tensor)
    assert (ours - alone).abs().max() <= 1e-5, "another result than one process"


def fully_sharded_spmd() -> None:
    import torch_xla.distributed.spmd as xs
    from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

    def cut(model: nn.Module, mesh: xs.Mesh) -> nn.Module:
        flat = xs.Mesh(mesh.device_ids, (len(mesh.device_ids), 1), ("fsdp", "model"))
        return SpmdFullyShardedDataParallel(model, mesh=flat)

    spmd(1, cut)


def data_and_model_spmd() -> None:
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    def cut(model: nn.Module, mesh: xs.Mesh) -> nn.Module:
        xs.mark_sharding(model[0].weight, mesh, ("model", None))
        xs.mark_sharding(model[0].bias, mesh, ("model",))
        xs.mark_sharding(model[2].weight, mesh, (None, "model"))
        return model

    spmd(xr.global_runtime_device_count() // 2, cut)


ON_CORES = {
    "plain steps": partial(train, read="never"),
    "read every step": partial(train, optimizer=torch.optim.AdamW, end="barrier"),
    "read on one core": partial(train, optimizer=partial(torch.optim.SGD, momentum=0.9), read="first"),
    "step context": partial(train, 5, end="step"),
    "bfloat16 autocast": partial(train, optimizer=partial(torch.optim.SGD, momentum=0.9), half=True),
    "device loader": device_loader,
    "collectives": collectives,
    "meetings": meetings,
    "master and checkpoint": master_and_checkpoint,
    "reads of all kinds": reads_of_all_kinds,
    "ddp": ddp,
    "fully sharded": fully_sharded,
    "autocast and accumulation": autocast_and_accumulation,
}
SPMD = {"fully sharded, spmd": fully_sharded_spmd, "data and model, spmd": data_and_model_spmd}
