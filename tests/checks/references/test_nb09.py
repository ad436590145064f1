"""Notebook 09's solutions against one process with all ranks' rows and with all the weights."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_utils import launch
from course_utils.checks.nb09_fsdp import choose_units, draw, make, start_sharded
from course_utils.lessons.models import GPT


def gradients():
    model = GPT(64, layers=8, context=16)
    plain = copy.deepcopy(model)
    mesh = dist.init_device_mesh("cpu", (2,))
    choose_units(model, mesh)
    model(torch.full((1, 4), dist.get_rank())).square().mean().backward()
    plain(torch.arange(2)[:, None].expand(2, 4)).square().mean().backward()  # both ranks' rows
    found: list[Any] = [p.grad for p in model.parameters()]
    return [grad.full_tensor() for grad in found], [p.grad for p in plain.parameters()]


def outputs():
    plain, x = make(), torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    plain.load_state_dict({name: draw(name, p.shape) for name, p in plain.named_parameters()})
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    return start_sharded(make, draw, mesh)(x), plain(x)


@pytest.mark.parametrize(("both", "ranks"), [(gradients, 2), (outputs, 3)])
def test_they_are_those_of_one_process(both, ranks):
    for got, expected in launch(both, ranks=ranks, device="cpu").results:
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
