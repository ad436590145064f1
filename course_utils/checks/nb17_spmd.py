"""Exercise of notebook 17, by what each device of one program holds and sends, and the values."""

import functools
import os
import re
from collections import Counter

import torch
from torch.nn.functional import cross_entropy

from .. import xla
from ..lessons.models import MLP, filled
from ..pictures.shards import Part
from .exercise import exercise
from .nb16_tpu_many_cores import on_cores, several

COLLECTIVES = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def shard_mlp(mlp, x, mesh):
    import torch_xla.distributed.spmd as xs

    xs.mark_sharding(x, mesh, ("data", None))
    xs.mark_sharding(mlp.up.weight, mesh, ("model", None))  # nn.Linear keeps (outputs, inputs)
    xs.mark_sharding(mlp.up.bias, mesh, ("model",))
    xs.mark_sharding(mlp.down.weight, mesh, (None, "model"))


def rows_only(mlp, x, mesh):
    import torch_xla.distributed.spmd as xs

    xs.mark_sharding(x, mesh, ("data", None))


def transposed(mlp, x, mesh):
    import torch_xla.distributed.spmd as xs

    rows_only(mlp, x, mesh)
    xs.mark_sharding(mlp.up.weight, mesh, (None, "model"))
    xs.mark_sharding(mlp.down.weight, mesh, ("model", None))


def indices(part: Part) -> str:
    """`[0:8, 4:8]`."""
    ranges = [f"{a}:{a + n}" for a, n in zip(part.start, part.shape, strict=True)]
    return f"[{', '.join(ranges)}]"


@exercise(
    shard_mlp,
    seconds=60.0,
    tol=1e-4,
    launch=functools.partial(on_cores, spmd=True),
    mistakes={
        "it is not marked: every device holds all of it": rows_only,
        "`nn.Linear` keeps (outputs, inputs), and it is cut along the other of the two": transposed,
    },
)
def _(answer):
    os.environ["XLA_DUMP_POST_OPTIMIZATIONS"] = "1"  # texts of programs are then those that run
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs

    devices, tol = several(), xla.tolerance(1e-4)
    for data, width in ((2, 16), (devices // 2, 24)):
        mesh = xs.Mesh(np.arange(devices), (data, devices // data), ("data", "model"))
        network = filled(MLP(width)).to(torch_xla.device())
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(32, width, generator=generator).to(torch_xla.device())
        where = f"{data} x {devices // data} devices, width {width}"
        answer(network, x, mesh)
        yield f"{where}: shard_mlp(mlp, x, mesh)", None  # these words are said where it raises
        frozen = [name for name, p in network.named_parameters() if not p.requires_grad]
        yield f"{where}: parameters that take no gradient any more", frozen
        held = xla.sharding({"x": x} | dict(network.named_parameters()))
        output = network(x)
        sent = Counter(COLLECTIVES.findall(torch_xla._XLAC._get_xla_tensors_hlo([output])))
        cross_entropy(output, torch.arange(32, device=x.device) % width).backward()
        yield f"{where}: the network's output", output.detach().cpu(), tol
        for name, p in network.named_parameters():
            grad = None if p.grad is None else p.grad.cpu()
            yield f"{where}: the gradient of {name}", grad, tol
        for parts in zip(*held, strict=True):
            cut = [indices(part) for part in parts]
            yield f"{where}: what each device holds of {parts[0].name} {parts[0].whole}", cut
        yield f"{where}: the collectives in the forward pass", sent
    yield (
        "",
        f"{devices} devices, in two meshes: same output and gradients, one all-reduce in the "
        "forward pass.",
    )
