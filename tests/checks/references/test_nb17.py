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

WIDTH = 12
X = torch.linspace(-1, 1, 16 * WIDTH).reshape(16, WIDTH)


def output_and_gradients(network, x):
    output = network(x)
    output.square().sum().backward()
    return [output.detach(), *(p.grad for p in network.parameters())]


def sharded():
    import torch_xla
    import torch_xla.distributed.spmd as xs

    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
    network = filled(MLP(WIDTH)).to(torch_xla.device())
    x = X.to(torch_xla.device())
    shard_mlp(network, x, mesh)
    held = xla.sharding({"x": x} | dict(network.named_parameters()))
    return output_and_gradients(network, x), held


def test_shard_mlp_is_the_network_in_parts():
    [(found, held)] = xla.launch(sharded, cores=4, spmd=True).results
    expected = output_and_gradients(filled(MLP(WIDTH)), X)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    shapes = {
        "x": (8, WIDTH),
        "up.weight": (2 * WIDTH, WIDTH),
        "up.bias": (2 * WIDTH,),
        "down.weight": (WIDTH, 2 * WIDTH),
        "down.bias": (WIDTH,),
    }
    assert [{part.name: part.shape for part in parts} for parts in held] == [shapes] * 4
