"""Notebook 09's solutions, held against one process with all ranks' rows and with all the weights."""

import copy

import torch
import torch.distributed as dist

from course_utils import launch
from course_utils.checks.nb09_fsdp import choose_units, draw, make, start_sharded
from course_utils.lessons.models import GPT


def gradients_apart():
    model = GPT(64, layers=8, context=16)
    plain, mesh = copy.deepcopy(model), dist.init_device_mesh("cpu", (2,))
    choose_units(model, mesh)
    model(torch.full((1, 4), dist.get_rank())).square().mean().backward()
    plain(torch.arange(2)[:, None].expand(2, 4)).square().mean().backward()  # both ranks' rows
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    return max((p.grad.full_tensor() - q.grad).abs().max().item() for p, q in pairs)


def test_units_have_the_gradient_of_one_process():
    assert (
        max(launch(gradients_apart, ranks=2, device="cpu", show=False, time_limit=600).results)
        < 1e-5
    )


def outputs():
    plain, x = make(), torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    plain.load_state_dict({name: draw(name, p.shape) for name, p in plain.named_parameters()})
    return start_sharded(make, draw, dist.init_device_mesh("cpu", (dist.get_world_size(),)))(
        x
    ), plain(x)


def test_a_sharded_start_gives_what_one_process_gives():
    for got, expected in launch(outputs, ranks=3, device="cpu", show=False, time_limit=600).results:
        torch.testing.assert_close(got, expected)
