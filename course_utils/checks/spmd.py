"""The exercises on SPMD: one program for all devices of a TPU, whose tensors are cut by annotation."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .. import xla
from ..lessons.models import MLP, filled
from .many_cores import launch, on_cpu
from .old import exercise, expect, wrong

WIDTH = 16
Spec = tuple[str | None, ...]  # the mesh's axis for each dim
COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"


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


def _program(answer: Callable, axes: tuple[str, ...]) -> dict[str, Any]:
    """The answer's annotations, what XLA made of them, and the values that came out."""
    os.environ["XLA_DUMP_POST_OPTIMIZATIONS"] = "1"  # texts of programs are then those that run
    import torch_xla

    device, mesh = torch_xla.device(), _mesh(axes)
    network, (x, y) = filled(MLP(WIDTH)).to(device), _example(device)
    answer(*(x, y, mesh) if len(axes) == 1 else (network, x, mesh))
    tensors = {"x": x, "y": y} if len(axes) == 1 else {"x": x}
    held = xla.sharding(tensors | dict(network.named_parameters())).by_device
    output = network(x)
    text = torch_xla._XLAC._get_xla_tensors_hlo([output])
    sent = Counter(re.findall(rf" ({COLLECTIVES})(?:-start)?\(", text))
    cross_entropy(output, y).backward()
    return {"held": held, "sent": sent, "mesh": dict(mesh.shape()), "output": output.detach().cpu(),
            "gradients": {name: None if p.grad is None else p.grad.cpu() for name, p in network.named_parameters()}}


def _same_values(result: dict[str, Any]) -> None:
    network, (x, y) = filled(MLP(WIDTH)), _example("cpu")
    output, tol = network(x), xla.tolerance(1e-4)
    cross_entropy(output, y).backward()
    expect("the network's output, beside the unsharded one's", output.detach(), result["output"], tol=tol)
    for name, p in network.named_parameters():
        if result["gradients"][name] is None:
            wrong(f"{name} gets no gradient any more: the annotations are to leave it trainable.",
                  expected="a gradient", got="none")
        expect(f"the gradient of {name}, beside the unsharded one's", p.grad, result["gradients"][name], tol=tol)


def _cuts(result: dict[str, Any], wanted: dict[str, Spec], why: str) -> None:
    """Every device holds what `wanted` says: for each dim the axis that cuts it, or None; else the whole tensor."""
    mesh = result["mesh"]
    for parts in zip(*result["held"], strict=True):
        name, whole = parts[0].name, parts[0].whole
        spec = wanted.get(name, (None,) * len(whole))
        for device, part in enumerate(parts):
            at = dict(zip(mesh, divmod(device, [*mesh.values()][-1]) if len(mesh) > 1 else (device,), strict=True))
            start = tuple(at[axis] * size // mesh[axis] if axis else 0 for axis, size in zip(spec, whole, strict=True))
            shape = tuple(size // mesh[axis] if axis else size for axis, size in zip(spec, whole, strict=True))
            if (part.start, part.shape) != (start, shape):
                wrong(f"{name} {whole} is not cut as it should be: {why}",
                      expected=f"device {device} holds {_range(start, shape)}",
                      got=f"device {device} holds {_range(part.start, part.shape)}")


def _range(start: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """As an index: [0:4, 0:16]."""
    return f"[{', '.join(f'{a}:{a + n}' for a, n in zip(start, shape, strict=True))}]"


@exercise(
    shard_batch,
    "xs.mark_sharding(tensor, mesh, names): one name for each dim of the tensor; None leaves that dim whole.",
    "x has two dims, rows and columns; each device is to have its own rows: (\"data\", None).",
    "The labels y belong to the rows: they have one dim, so one name.",
)
def _shard_batch(answer: Callable) -> str:
    result = launch(_program, answer, ("data",), spmd=True).results[0]
    devices = result["mesh"]["data"]
    _cuts(result, {"x": ("data", None), "y": ("data",)}, "data parallel cuts the rows of x and y, and no more.")
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
    result = launch(_program, answer, ("data", "model"), spmd=True).results[0]
    data, model = result["mesh"].values()
    _same_values(result)
    wanted = {"x": ("data", None), "up.weight": ("model", None), "up.bias": ("model",), "down.weight": (None, "model")}
    _cuts(result, wanted, f"rows of x in {data} parts along the axis data, up by outputs and down by inputs in {model} "
          "along the axis model, the rest whole.")
    # A TPU's compiler may merge or split collectives; XLA's CPU client does not.
    if result["sent"].keys() - {"all-reduce"} or (on_cpu() and result["sent"] != {"all-reduce": 1}):
        wrong("Cut as asked, but XLA sends more than it needs to in the forward pass.", expected="1 all-reduce",
              got=", ".join(f"{n} {kind}" for kind, n in result["sent"].items()) or "nothing sent")
    return f"{data} x {model} = {data * model} devices: same output and gradients, one all-reduce in the forward pass."
