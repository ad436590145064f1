"""Exercise of notebook 16, looked at on two and three cores: replicas that train as one process."""

import functools
import os
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

from .. import xla
from ..errors import CourseError, RankError
from ..lessons import models
from ..ranks.run import Run
from .compare import kind
from .exercise import exercise
from .instruments import Rows, weights


def on_cores(*task: Any, ranks: int, time_limit: float, spmd: bool = False, **_: Any) -> Run:
    """`task` on `ranks` virtual cores, with SPMD on 8, or on all of a TPU."""
    tpu = os.environ.get("PJRT_DEVICE") == "TPU"
    if tpu:
        time_limit += 180.0  # it takes longer to start
    cores = None if tpu or spmd else ranks
    try:
        return xla.launch(*task, cores=cores, spmd=spmd, time_limit=time_limit, show=False)
    except RankError as error:
        why = ""
        if error.cause == "SIGABRT":
            why = "Not all cores came to a collective: virtual ones wait ten seconds for it."
        elif "process group twice" in error.report.happened:
            why = "Virtual cores are threads of one process, where DDP does not run."
        if why and not tpu:
            error.report = error.report._replace(others=[why])
        raise


def several() -> int:
    """How many cores there are."""
    import torch_xla.runtime as xr

    cores = xr.global_runtime_device_count()
    if cores == 1:
        raise CourseError(
            'several cores are needed: restart, and call xla.setup(device="CPU") for virtual ones'
        )
    return cores


def train_replica(dataset, epochs):
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    device = torch_xla.device()
    model = models.mlp(seed=xr.global_ordinal()).to(device)
    xm.broadcast_master_param(model)
    sampler = DistributedSampler(dataset, xr.world_size(), xr.global_ordinal(), shuffle=False)
    loader = MpDeviceLoader(DataLoader(dataset, 8, sampler=sampler), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            xm.optimizer_step(optimizer)
    return model


class Learned(Rows):
    """Rows whose labels are soon learned: a core's own loss falls below 2, 1, and a half."""

    def __getitem__(self, row):
        image, label = super().__getitem__(row)
        return image, torch.full_like(label, int(row) % 7 == 0)


def replica(dataset, epochs, seed, reduce, dealt=True):
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    core, cores = xr.global_ordinal(), xr.world_size()
    device = torch_xla.device()
    model = models.mlp(seed=seed * core).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in DataLoader(dataset, 8, sampler=range(core * dealt, len(dataset), cores)):
            optimizer.zero_grad()
            cross_entropy(model(x.to(device)), y.to(device)).backward()
            if reduce:
                xm.reduce_gradients(optimizer)
            optimizer.step()
            torch_xla.sync()
    return model


own_weights = functools.partial(replica, seed=1, reduce=True)
rows_of_0 = functools.partial(replica, seed=0, reduce=True, dealt=False)
own_gradients = functools.partial(replica, seed=0, reduce=False)


@exercise(
    train_replica,
    ranks=(3, 2),
    seconds=60.0,
    launch=on_cores,
    unit="core",
    mistakes={
        "every core reads core 0's rows: the sampler's `rank` is this core's own number, "
        "`xr.global_ordinal()`": rows_of_0,
        "the replicas begin with different weights: each core keeps its own, and core 0's are to "
        "be everyone's": own_weights,
        "each core steps with the gradients of its own rows: average them over all "
        "cores": own_gradients,
    },
)
def _(answer):
    import torch_xla
    import torch_xla.core.xla_model as xm

    cores = several()
    dataset = Learned(20 * cores)  # in batches of 8, 8 and 4 a core
    epochs = 2 + cores
    model = answer(dataset, epochs)
    torch_xla.sync()
    end = bits = None
    if isinstance(model, nn.Module):
        end = weights(model).cpu()
        bits = end.numpy().tobytes()
    unlike = xm.mesh_reduce("weights", bits, set)
    yield "the rows that it reads, sorted", f"{sorted(dataset.seen)}"  # as one text, to be shown
    yield "what it returns", "a model" if end is not None else kind(model)
    words = f"the weights after {epochs} epochs, against one process that takes whole batches"
    yield words, end, xla.tolerance()
    yield "replicas that are unlike, if only in one bit", len(unlike)
    yield (
        "",
        f"{cores} cores, each with rows of its own: bit-equal, and as one process on whole "
        "batches.",
    )
