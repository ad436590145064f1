"""Kinds of use of one SPMD program on several devices, for the stress test: fully sharded, and a grid of two axes.

Each is the whole training: it ends with the weights of one process that takes the same batches.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from core_cases import BATCH, CLASSES, FEATURES, network
from torch import nn

STEPS, TOLERANCE = 4, 1e-5


def whole_batches(devices: int):
    source = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        rows = devices * BATCH
        yield torch.randn(rows, FEATURES, generator=source), torch.randint(0, CLASSES, (rows,), generator=source)


def train(model: nn.Module, devices: int, place: Callable) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in whole_batches(devices):
        x, y = place(x, y)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if x.device.type == "xla":
            import torch_xla

            torch_xla.sync()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


def trained(cut: Callable, axes: dict[str, int]) -> None:
    """`cut(model, mesh)` gives the model to train; the batch is cut along the mesh's first axis."""
    import torch_xla
    import torch_xla.distributed.spmd as xs

    devices = int(np.prod([*axes.values()]))
    mesh = xs.Mesh(np.arange(devices), tuple(axes.values()), tuple(axes))

    def place(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = x.to(torch_xla.device()), y.to(torch_xla.device())
        xs.mark_sharding(x, mesh, (next(iter(axes)), None))
        xs.mark_sharding(y, mesh, (next(iter(axes)),))
        return x, y

    ours = train(cut(network().to(torch_xla.device()), mesh), devices, place)
    alone = train(network(), devices, lambda x, y: (x, y))
    assert (ours - alone).abs().max() <= TOLERANCE, "another result than one process"


def fully_sharded_spmd() -> None:
    import torch_xla.runtime as xr
    from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

    devices = xr.global_runtime_device_count()
    trained(lambda model, mesh: SpmdFullyShardedDataParallel(model, mesh=mesh), {"fsdp": devices})


def data_and_model_spmd() -> None:
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    def cut(model: nn.Module, mesh: xs.Mesh) -> nn.Module:
        xs.mark_sharding(model[0].weight, mesh, ("model", None))
        xs.mark_sharding(model[0].bias, mesh, ("model",))
        xs.mark_sharding(model[2].weight, mesh, (None, "model"))
        return model

    trained(cut, {"data": 2, "model": xr.global_runtime_device_count() // 2})


SPMD_CASES = {case.__name__.replace("_", " "): case for case in (fully_sharded_spmd, data_and_model_spmd)}
