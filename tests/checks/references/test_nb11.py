"""Notebook 11's solutions on two ranks, held against one whole layer in float64."""

import copy

import pytest
import torch
import torch.distributed as dist

from course_utils import launch
from course_utils.checks.nb11_tensor_parallel import attention_part, mlp_part
from course_utils.lessons.models import MLP, Attention, filled


def outputs_and_gradients(function, layer, x):
    x.requires_grad_()
    y = function(x)
    y.tanh().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]


def both(layer, part):
    x = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0))
    whole = filled(copy.deepcopy(layer)).double()
    expected = outputs_and_gradients(whole, whole, x.double())
    got = outputs_and_gradients(lambda x: part(x, filled(layer)), layer, x.clone())
    # on each rank its part, zeros elsewhere; the last bias is whole on every rank
    for grad in got[2:-1]:
        dist.all_reduce(grad)
    return got, expected


@pytest.mark.parametrize(
    ("layer", "part"),
    [
        (MLP(16), lambda x, mlp: mlp_part(x, mlp.up, mlp.down)),
        (Attention(16, 4), attention_part),
    ],
    ids=["MLP", "attention"],
)
def test_the_parts_are_the_whole_layer(layer, part):
    for got, expected in launch(both, layer, part, ranks=2, device="cpu").results:
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, check_dtype=False)
