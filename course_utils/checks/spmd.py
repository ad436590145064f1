"""The exercises on many TPU cores: replicas on cores, and one program whose tensors are cut by annotation."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from .. import cores as xla
from ..lessons import models
from ..lessons.shards import Part
from .exercise import exercise, expect, wrong

CORES, SECONDS = 4, 60.0
ROWS, BATCH, EPOCHS = 16, 8, 2  # a core's rows and batch
WIDTH = 16
COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"


def _launch(program: Callable, *args: Any, spmd: bool) -> xla.Run:
    cores = None if os.environ.get("PJRT_DEVICE") == "TPU" else CORES  # a TPU's cores come all together
    return xla.launch(program, *args, cores=cores, spmd=spmd, time_limit=SECONDS, show=False)


# -- replicas ----------------------------------------------------------------------------------------------------------


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


def _replica(answer: Callable) -> tuple[list[int], Tensor | None]:
    """In each core: the rows that were read, and the weights at the end."""
    import torch_xla
    import torch_xla.runtime as xr

    dataset = _Watched(xr.world_size() * ROWS)
    model = answer(dataset, EPOCHS)
    torch_xla.sync()
    if not isinstance(model, nn.Module):
        return dataset.read, None
    return dataset.read, _flat(model).cpu()


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


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
    return _flat(model)


@exercise(
    train_replica,
    "Which rows does each core get? DistributedSampler(dataset, number of cores, this core's number, …).",
    "Which weights does each core begin with? xm.broadcast_master_param(model) gives all those of core 0.",
    "Which gradients does each core step with? optimizer.step() knows only its own core; xm.optimizer_step(optimizer) "
    "averages them over all cores first.",
)
def _train_replica(answer: Callable) -> str:
    results = _launch(_replica, answer, spmd=False).results
    cores, rows = len(results), len(results) * ROWS
    read = [seen for seen, _ in results]
    if all(seen == read[0] for seen in read[1:]):
        wrong(f"All {cores} cores read the same rows.", expected=f"{ROWS} rows of its own for each core",
              got=f"rows {sorted(set(read[0]))[:8]}… on every core")  # fmt: skip
    expect(f"rows that all cores together read in {EPOCHS} epochs, sorted", sorted([*range(rows)] * EPOCHS),
           sorted(row for seen in read for row in seen))  # fmt: skip
    weights = [found for _, found in results]
    if weights[0] is None:
        expect("what train_replica(dataset, epochs) returns", "the model", None)
    for core, other in enumerate(weights[1:], 1):
        if not torch.equal(other, weights[0]):
            wrong(f"Cores 0 and {core} end with different weights: their replicas began apart, or drift.",
                  expected="bit-equal weights on every core",
                  got=f"up to {float((other - weights[0]).abs().max()):.2g} apart")  # fmt: skip
    expect("the weights, beside those of one process that takes the whole batches", _alone(cores), weights[0], tol=1e-5)
    return f"{cores} cores, each with rows of its own: bit-equal replicas, and equal to one process on whole batches."


# -- one program, cut by annotation ------------------------------------------------------------------------------------


def shard_batch(x: Tensor, y: Tensor, mesh: Any) -> None:
    import torch_xla.distributed.spmd as xs

    xs.mark_sharding(x, mesh, ("data", None))
    xs.mark_sharding(y, mesh, ("data",))


def shard_mlp(mlp: nn.Module, x: Tensor, mesh: Any) -> None:
    import torch_xla.distributed.spmd as xs

    xs.mark_sharding(x, mesh, ("data", None))
    xs.mark_sharding(mlp.up.weight, mesh, ("model", None))  # nn.Linear keeps (outputs, inputs)
    xs.mark_sharding(mlp.up.bias, mesh, ("model",))
    xs.mark_sharding(mlp.down.weight, mesh, (None, "model"))


def _mesh(axes: tuple[str, ...]) -> Any:
    import numpy as np
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    devices = xr.global_runtime_device_count()
    return xs.Mesh(np.arange(devices), (devices,) if len(axes) == 1 else (2, devices // 2), axes)


def _example(device: torch.device | str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(32, WIDTH, generator=generator), torch.randint(WIDTH, (32,), generator=generator)
    return x.to(device), y.to(device)


def _network() -> nn.Module:
    """The same weights everywhere, biases included."""
    network, generator = models.MLP(WIDTH), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    return network


def _program(answer: Callable, axes: tuple[str, ...]) -> dict[str, Any]:
    """The answer's annotations, what XLA made of them, and the values that came out."""
    os.environ["XLA_DUMP_POST_OPTIMIZATIONS"] = "1"  # texts of programs are then those that run
    import torch_xla

    device, mesh = torch_xla.device(), _mesh(axes)
    network, (x, y) = _network().to(device), _example(device)
    answer(*(x, y, mesh) if len(axes) == 1 else (network, x, mesh))
    tensors = {"x": x, "y": y} if len(axes) == 1 else {"x": x}
    held = xla.sharding(tensors | dict(network.named_parameters())).by_device
    output = network(x)
    text = torch_xla._XLAC._get_xla_tensors_hlo([output])
    sent = Counter(re.findall(rf" ({COLLECTIVES})(?:-start)?\(", text))
    cross_entropy(output, y).backward()
    return {"held": held, "sent": sent, "mesh": tuple(mesh.shape().values()), "output": output.detach().cpu(),
            "gradients": {name: p.grad.cpu() for name, p in network.named_parameters()}}  # fmt: skip


def _same_values(result: dict[str, Any]) -> None:
    network, (x, y) = _network(), _example("cpu")
    output = network(x)
    cross_entropy(output, y).backward()
    expect("the network's output, beside the unsharded one's", output.detach(), result["output"], tol=1e-4)
    for name, p in network.named_parameters():
        expect(f"the gradient of {name}, beside the unsharded one's", p.grad, result["gradients"][name], tol=1e-4)


def _cuts(result: dict[str, Any], wanted: dict[str, tuple[int, ...]], why: str) -> None:
    """Each tensor is cut into `wanted` pieces by dim; what `wanted` does not name, into one."""
    for parts in zip(*result["held"], strict=True):
        name, whole = parts[0].name, parts[0].whole
        pieces = wanted.get(name, (1,) * len(whole))
        if (got := _pieces(parts)) != pieces:
            wrong(f"{name} {whole} is not cut as it should be: {why}", expected=_cut(pieces), got=_cut(got))


def _pieces(parts: tuple[Part, ...]) -> tuple[int, ...]:
    return tuple(len({part.start[dim] for part in parts}) for dim in range(len(parts[0].whole)))


def _cut(pieces: tuple[int, ...]) -> str:
    cuts = [f"{n} pieces along dim {dim}" for dim, n in enumerate(pieces) if n > 1]
    return " and ".join(cuts) or "whole on every device"


@exercise(
    shard_batch,
    "xs.mark_sharding(tensor, mesh, names): one name for each dim of the tensor; None leaves that dim whole.",
    "x has two dims, rows and columns; each device is to have its own rows: (\"data\", None).",
    "The labels y belong to the rows: they have one dim, so one name.",
)
def _shard_batch(answer: Callable) -> str:
    result = _launch(_program, answer, ("data",), spmd=True).results[0]
    [devices] = result["mesh"]
    _cuts(result, {"x": (devices, 1), "y": (devices,)}, "data parallel cuts the rows of x and y, and no more.")
    _same_values(result)
    return f"Each of {devices} devices has 1/{devices} of the rows and the whole network; same output, same gradients."


@exercise(
    shard_mlp,
    "The rows of x go along the axis \"data\". The network is whole along \"data\" and cut along \"model\": up by its "
    "outputs, down by its inputs, as in the notebook on tensor parallelism.",
    "nn.Linear keeps (outputs, inputs): mlp.up.weight takes (\"model\", None), mlp.down.weight (None, \"model\").",
    "mlp.up.bias has one number for each output, so it is cut as they are. mlp.down.bias is added once, to the "
    "finished sum: it stays whole.",
)
def _shard_mlp(answer: Callable) -> str:
    result = _launch(_program, answer, ("data", "model"), spmd=True).results[0]
    data, model = result["mesh"]
    _same_values(result)
    _cuts(result, {"x": (data, 1), "up.weight": (model, 1), "up.bias": (model,), "down.weight": (1, model)},
          f"rows of x in {data} parts, up by outputs and down by inputs in {model}, the rest whole.")  # fmt: skip
    if result["sent"] != {"all-reduce": 1}:
        wrong("Cut as asked, but XLA sends more than it needs to in the forward pass.", expected="1 all-reduce",
              got=", ".join(f"{n} {kind}" for kind, n in result["sent"].items()) or "nothing sent")  # fmt: skip
    devices = math.prod(result["mesh"])
    return f"{data} x {model} = {devices} devices: same output, same gradients, and one all-reduce in the forward pass."
