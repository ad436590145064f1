"""Bytes of shards, and FSDP2's messages seen: the training stays the same."""

import itertools
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_utils import Traffic, launch, pick, span
from course_utils.lessons import fsdp


def test_held_counts_each_storage_once():
    x = torch.zeros(4, 8)
    assert fsdp.held([x, x[1:], x.T]) == 128
    assert fsdp.held([x, torch.zeros(2)]) == 136
    assert fsdp.held([]) == 0


def test_alive_counts_what_is_there():
    kept = torch.zeros(100)
    with fsdp.Alive([kept]) as alive:
        x = torch.zeros(50)
        view = x[:10]
        del x
        torch.zeros(25, device="meta")
        y = torch.zeros(25)
        y.untyped_storage().resize_(0)
        view + 1
    assert alive.samples == [600, 600, 600, 700, 640]
    assert alive.most == 700


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


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)).to(pick())
    mesh = init_device_mesh(pick().type, (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def gradients(watch):
    model, found = made(), []
    gathers, _ = fsdp.watch(model) if watch else (None, None)
    if watch:
        model[0].register_forward_pre_hook(lambda *_: found.append((fsdp.held(model.parameters()), gathers.held)))
    with span("forward"), Traffic() as forward:
        loss = model(torch.full((2, 8), 1.0 + dist.get_rank(), device=pick())).square().sum()
    with span("backward"), Traffic() as backward:
        loss.backward()
    end = time.monotonic() + 5
    while watch and gathers.held and time.monotonic() < end:
        time.sleep(0.01)  # a thread of the backend may hold the buffer for a moment longer
    left = gathers.held if watch else 0
    return [p.grad.full_tensor().cpu() for p in model.parameters()], found, left, forward.order + backward.order


def test_messages_are_seen_and_nothing_changes():
    run = launch(gradients, True, ranks=2, time_limit=60)
    bare = launch(gradients, False, ranks=2, time_limit=60)
    for (watched, found, left, order), (plain, _, _, same) in zip(run.results, bare.results, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(watched, plain, strict=True))
        assert found == [(256 + 128, 256)]  # one layer whole, the other's shard; and the gather's own buffer
        assert left == 0
        assert order == same
        assert order.count(("reduce-scatter", 256)) == 2
    for rank in range(2):
        names = [s.name for s in run.timeline.spans if s.rank == rank]
        assert names.count("all-gather") == [name for name, _ in run.results[rank][3]].count("all-gather")
        assert names.count("reduce-scatter") == 2
    assert not any(s.name == "all-gather" for s in bare.timeline.spans)
    flat = run.timeline.flat()
    for rank in range(2):
        computing = [s for s in flat.spans if (s.rank, s.lane) == (rank, "compute")]
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(computing))
