"""Sending when gradients are ready; FSDP2's messages as spans: the training stays the same."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_utils import Traffic, launch, pick, span
from course_utils.lessons import fsdp


def in_a_backward(parts):
    model, calls = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), []
    for i, part in enumerate(parts(model)):
        fsdp.when_ready(part, lambda i=i: calls.append((i, sum(p.grad is not None for p in model.parameters()))))
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
    return calls


def test_when_ready():
    assert in_a_backward(lambda model: [layer.parameters() for layer in model]) == [(1, 2), (0, 4)] * 2
    assert in_a_backward(lambda model: [model.parameters()]) == [(0, 4)] * 2


def gradients(traced):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)).to(pick())
    mesh = init_device_mesh(pick().type, (dist.get_world_size(),))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    if traced:
        fsdp.trace_messages(model)
    with span("forward"), Traffic() as forward:
        loss = model(torch.full((2, 8), 1.0 + dist.get_rank(), device=pick())).square().sum()
    with span("backward"), Traffic() as backward:
        loss.backward()
    return [p.grad.full_tensor().cpu() for p in model.parameters()], forward.order + backward.order


def test_messages_are_spans_and_nothing_changes():
    run = launch(gradients, True, ranks=2, time_limit=60)
    bare = launch(gradients, False, ranks=2, time_limit=60)
    for rank, ((traced, order), (plain, same)) in enumerate(zip(run.results, bare.results, strict=True)):
        assert all(torch.equal(a, b) for a, b in zip(traced, plain, strict=True))
        assert order == same
        assert order.count(("reduce-scatter", 256)) == 2
        names = [s.name for s in run.timeline.spans if s.rank == rank]
        assert names.count("all-gather") == [name for name, _ in order].count("all-gather")
        assert names.count("reduce-scatter") == 2
        computing = [s for s in run.timeline.flat().spans if (s.rank, s.lane) == (rank, "compute")]
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(computing))
    assert not any(s.name == "all-gather" for s in bare.timeline.spans)
