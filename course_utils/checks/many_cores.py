"""The exercise on replicas: a training function that runs on every TPU core, real or virtual."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from .. import xla
from ..errors import CourseError, RankError
from ..lessons import models
from ..ranks.run import Run
from .old import exercise, expect, wrong

CORES, DEVICES = 3, 8  # without a TPU: of the replicas, of one SPMD program
SECONDS = {"CPU": 60.0, "TPU": 240.0}  # a TPU takes longer to start
ROWS, BATCH, EPOCHS = 16, 8, 3  # a core's rows and batch


def on_cpu() -> bool:
    """Are the cores virtual ones?"""
    return os.environ.get("PJRT_DEVICE") != "TPU"


def launch(program: Callable, *args: Any, spmd: bool) -> Run:
    """`program` on all cores; said in words where there is only one."""
    on = "CPU" if on_cpu() else "TPU"
    cores = (DEVICES if spmd else CORES) if on == "CPU" else None  # a TPU's cores come all together
    run = xla.launch(_several, program, args, cores=cores, spmd=spmd, time_limit=SECONDS[on], show=False)
    if run.results[0] is None:
        raise CourseError('This exercise needs several cores, and this TPU has one: restart the kernel, call '
                          'xla.setup(device="CPU") for virtual ones, and run the notebook again.')
    return run


def _several(program: Callable, args: tuple) -> Any:
    """What `program` returns; None where there is only one device."""
    import torch_xla.runtime as xr

    return program(*args) if xr.global_runtime_device_count() > 1 else None


def train_replica(dataset: Dataset, epochs: int) -> nn.Module:
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


class _Watched(Dataset):
    """Random rows that remember which were read."""

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(2)
        self.x, self.y = torch.rand(rows, 64, generator=generator), torch.randint(10, (rows,), generator=generator)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.read.append(row)
        return self.x[row], self.y[row]


def _replica(answer: Callable) -> tuple[list[int], Tensor | str | None]:
    """In each core: the rows that were read, and the weights at the end, or what came instead of a model."""
    import torch_xla
    import torch_xla.runtime as xr

    dataset = _Watched(xr.world_size() * ROWS)
    model = answer(dataset, EPOCHS)
    torch_xla.sync()
    if not isinstance(model, nn.Module):
        return dataset.read, None if model is None or model is ... else type(model).__name__
    return dataset.read, parameters_to_vector(model.parameters()).detach().cpu()


def _alone(cores: int) -> Tensor:
    """The weights of one process that takes the whole batches."""
    dataset, model = _Watched(cores * ROWS), models.mlp(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for start in range(0, len(dataset), cores * BATCH):
            optimizer.zero_grad()
            rows = slice(start, start + cores * BATCH)
            cross_entropy(model(dataset.x[rows]), dataset.y[rows]).backward()
            optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


@exercise(
    train_replica,
    "Which rows does each core get? DistributedSampler(dataset, number of cores, this core's number, …).",
    "Which weights does each core begin with? xm.broadcast_master_param(model) gives all those of core 0.",
    "Which gradients does each core step with? optimizer.step() knows only its own core; xm.optimizer_step(optimizer) "
    "averages them over all cores first.",
)
def _train_replica(answer: Callable) -> str:
    for _ in range(2):  # a crash of XLA's own is not the answer's: what is wrong crashes twice
        try:
            results = launch(_replica, answer, spmd=False).results
            break
        except RankError as error:
            if "SIGSEGV" not in str(error):
                raise
    else:
        wrong("The cores' process crashed in compiled code (SIGSEGV). torch_xla does so when xm.optimizer_step finds "
              "no gradients: does zero_grad come between backward and the step?",
              expected="gradients when the optimizer steps", got="a crash")
    cores, weights = len(results), [found for _, found in results]
    for core, found in enumerate(weights):
        if found is None and any(other is not None for other in weights):
            wrong(f"Core {core} returned nothing; every core returns its model.", expected="the model", got="None")
        if not isinstance(found, Tensor):
            expect("what train_replica(dataset, epochs) returns", "the model", found and f"a {found}")
    read = [sorted(set(seen)) for seen, _ in results]
    if all(seen == read[0] for seen in read[1:]):
        wrong(f"All {cores} cores read the same rows.", expected=f"{ROWS} rows of its own for each core",
              got=f"rows {read[0][:8]}… on every core")
    expect("rows that all cores together read in an epoch, sorted", [*range(cores * ROWS)],
           sorted(row for seen in read for row in seen))
    for core, other in enumerate(weights[1:], 1):
        if not torch.equal(other, weights[0]):
            wrong(f"Cores 0 and {core} end with different weights: their replicas began apart, or drift.",
                  expected="bit-equal weights on every core",
                  got=f"up to {float((other - weights[0]).abs().max()):.2g} apart")
    off = float((_alone(cores) - weights[0]).abs().max())
    if off > xla.tolerance():
        wrong(f"The replicas are equal, but not to one process that takes the whole batches for {EPOCHS} epochs, in "
              "the order of DistributedSampler(…, shuffle=False), from core 0's weights.",
              expected=f"weights within {xla.tolerance():g}", got=f"up to {off:.2g} apart")
    return f"{cores} cores, each with rows of its own: bit-equal replicas, and equal to one process on whole batches."
