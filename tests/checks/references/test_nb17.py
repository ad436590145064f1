"""The published solution of notebook 17 against the network on one device, and Megatron's cut of an
MLP.
"""

import pytest

pytest.importorskip("torch_xla")

import numpy as np
import torch

from course_utils import xla
from course_utils.checks.nb17_spmd import shard_mlp
from course_utils.lessons.models import MLP, filled

ROWS, WIDTH = 16, 12


def sharded():
    import torch_xla
    import torch_xla.distributed.spmd as xs

    mesh, device = xs.Mesh(np.arange(4), (2, 2), ("data", "model")), torch_xla.device()
    network, x = (
        filled(MLP(WIDTH)).to(device),
        torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH).to(device),
    )
    shard_mlp(network, x, mesh)
    held = xla.sharding({"x": x} | dict(network.named_parameters()))
    output = network(x)
    output.square().sum().backward()
    return output.detach(), [p.grad for p in network.parameters()], held


def test_shard_mlp_is_the_network_in_parts():
    [(output, gradients, held)] = xla.launch(sharded, cores=4, spmd=True, show=False).results
    network = filled(MLP(WIDTH))
    expected = network(torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH))
    expected.square().sum().backward()
    torch.testing.assert_close(output, expected.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        gradients, [p.grad for p in network.parameters()], atol=1e-4, rtol=1e-4
    )
    shapes = {
        "x": (8, WIDTH),
        "up.weight": (2 * WIDTH, WIDTH),
        "up.bias": (2 * WIDTH,),
        "down.weight": (WIDTH, 2 * WIDTH),
        "down.bias": (WIDTH,),
    }
    assert [{part.name: part.shape for part in parts} for parts in held] == [shapes] * 4
