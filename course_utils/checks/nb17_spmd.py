"""Exercise of notebook 17, looked at by what each device of one program holds, what is sent, and the values."""

import functools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import cross_entropy

from .. import xla
from ..lessons.models import MLP, filled
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


@exercise(shard_mlp, seconds=60.0, tol=1e-4, launch=functools.partial(on_cores, spmd=True))
def _(answer: Callable) -> Iterator[tuple]:
    os.environ["XLA_DUMP_POST_OPTIMIZATIONS"] = "1"  # texts of programs are then those that run
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs

    devices, tol = several(), xla.tolerance(1e-4)
    for data, width in ((2, 16), (devices // 2, 24)):
        mesh = xs.Mesh(np.arange(devices), (data, devices // data), ("data", "model"))
        network = filled(MLP(width)).to(torch_xla.device())
        x = torch.randn(32, width, generator=torch.Generator().manual_seed(1)).to(
            torch_xla.device()
        )
        answer(network, x, mesh)
        held = xla.sharding({"x": x} | dict(network.named_parameters()))
        output = network(x)
        sent = Counter(COLLECTIVES.findall(torch_xla._XLAC._get_xla_tensors_hlo([output])))
        cross_entropy(output, torch.arange(32, device=x.device) % width).backward()
        where = f"{data} x {devices // data} devices, width {width}"
        yield f"{where}: the network's output", output.detach().cpu(), tol
        for name, p in network.named_parameters():
            yield (
                f"{where}: the gradient of {name}",
                p.grad if p.grad is None else p.grad.cpu(),
                tol,
            )
        for parts in zip(*held, strict=True):
            ranges = [
                [f"{a}:{a + n}" for a, n in zip(part.start, part.shape, strict=True)]
                for part in parts
            ]
            cut = [f"[{', '.join(one)}]" for one in ranges]
            yield f"{where}: what each device holds of {parts[0].name} {parts[0].whole}", cut
        yield f"{where}: the collectives in the forward pass", sent
    yield (
        "",
        f"{devices} devices, in two meshes: same output and gradients, one all-reduce in the forward pass.",
    )
