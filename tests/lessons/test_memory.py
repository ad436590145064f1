"""Bytes that a rank holds: of parameters, gradients and optimizer states, whole or sharded; what autograd keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from course_utils import launch, pick
from course_utils.lessons import memory


def stepped(model, optimizer):
    model(torch.ones(3, 4, device=pick())).sum().backward()
    optimizer.step()
    return memory.states(model, optimizer)


def test_states_of_a_whole_model():
    model = nn.Linear(4, 5).to(pick())
    optimizer = torch.optim.Adam(model.parameters())
    assert memory.states(model, optimizer) == {"parameters": 100, "gradients": 0, "optimizer": 0}
    assert stepped(model, optimizer) == {"parameters": 100, "gradients": 100, "optimizer": 200}
    frozen = nn.Linear(4, 5).to(pick())
    frozen.bias.requires_grad_(False)
    assert stepped(frozen, torch.optim.SGD([frozen.weight], lr=0.1)) == {
        "parameters": 100, "gradients": 80, "optimizer": 0}


def sharded():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nn.Linear(4, 4).to(pick()), mesh=init_device_mesh(pick().type, (dist.get_world_size(),)))
    return stepped(model, torch.optim.Adam(model.parameters()))


def test_states_of_a_rank():
    for held in launch(sharded, ranks=2, time_limit=60).results:
        assert held == {"parameters": 40, "gradients": 40, "optimizer": 80}


@pytest.mark.parametrize("kept", ["x", "both"])
def test_kept_is_what_backward_needs_and_let_go_after_it(kept):
    x = torch.ones(10, 4)
    weight = nn.Parameter(torch.ones(4, 3))
    with memory.Kept() as count:
        y = x @ weight  # keeps x; the parameter is there anyway
        if kept == "both":
            y = y.exp()  # keeps its result
        assert count.now == (160 if kept == "x" else 160 + 120)
        y.sum().backward()
        del y
    assert count.now == 0
    assert count.most == (160 if kept == "x" else 160 + 120)
