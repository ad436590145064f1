"""Bytes against known sizes and the allocator's own count: alive, by kind, within a budget."""

import json

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.profiler import ProfilerActivity, profile

from course_utils import launch, pick
from course_utils.lessons import models
from course_utils.lessons.memory import Alive, Meter, SavedTensors, held, tensors


def test_held_counts_each_storage_once():
    x = torch.zeros(4, 8)
    assert held([x, x[1:], x.T]) == 128
    assert held([x, torch.zeros(2)]) == 136
    assert held([]) == 0
    assert held([torch.zeros(3, device="meta"), torch.zeros(2)]) == 8


def sharded():
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4, 4).to(pick())
    fully_shard(model, mesh=init_device_mesh(pick().type, (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 4, device=pick())).sum().backward()
    optimizer.step()
    groups = tensors(model.parameters(), optimizer)
    return {kind: held(t for t in group if t.dim()) for kind, group in groups.items()}


def test_what_a_rank_of_a_sharded_model_holds():
    for kinds in launch(sharded, ranks=2).results:
        assert kinds == {"parameters": 40, "gradients": 40, "optimizer states": 80}


def test_alive_counts_what_is_there():
    kept = torch.zeros(100)
    with Alive([kept]) as alive:
        x = torch.zeros(50)
        view = x[:10]
        del x
        torch.zeros(25, device="meta")
        y = torch.zeros(25)
        y.untyped_storage().resize_(0)
        view + 1
    assert alive.samples == [600, 600, 600, 700, 640]
    assert alive.peak == 700


def test_the_largest_memory_of_forward_and_backward():
    x = torch.zeros(10, 4, requires_grad=True)
    with Alive() as alive:
        y = (x @ torch.zeros(4, 50)).sum()
    assert alive.largest == 10 * 50 * 4
    with Alive() as alive:
        y.backward()
    # the matrix, transposed; one number expanded to 10 x 50 takes no memory
    assert alive.largest == 4 * 50 * 4


def test_the_largest_part_of_a_dtensor():
    def largest_of(by_columns):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        x = distribute_tensor(torch.zeros(8, 4), mesh, [Replicate()])
        a = distribute_tensor(torch.zeros(4, 100), mesh, [Shard(1) if by_columns else Replicate()])
        with Alive() as alive:
            x @ a
        return alive.largest

    for by_columns, size in ((True, 8 * 50 * 4), (False, 8 * 100 * 4)):
        run = launch(largest_of, by_columns, ranks=2, device="cpu")
        assert run.results == [size, size]


@pytest.fixture
def training():
    model, x, y = models.mlp(256), torch.randn(512, 64), torch.randint(10, (512,))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return model, optimizer, step


def test_meter_counts_what_the_allocator_counts(training, tmp_path):
    *what, step = training
    groups = tensors(what[0].parameters(), what[1]).values()
    before = held(tensor for group in groups for tensor in group)
    watched = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with Meter(*what) as meter, watched:
        step()
    watched.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    events = [event["args"] for event in trace if event.get("name") == "[memory]"]
    start = events[0]["Total Allocated"] - events[0]["Bytes"]
    assert meter.peak - before == max(event["Total Allocated"] for event in events) - start


def test_kinds_and_phases(training):
    model, optimizer, step = training
    parameters = 4 * sum(p.numel() for p in model.parameters())
    with Meter(model, optimizer) as meter:
        step()
    assert {kinds["parameters"] for kinds in meter.kinds} == {parameters}
    assert meter.kinds[0]["gradients"] == 0
    assert max(kinds["gradients"] for kinds in meter.kinds) == parameters
    # And a counter each.
    assert meter.kinds[-1]["optimizer states"] == pytest.approx(2 * parameters, rel=1e-3)
    assert max(kinds["activations"] for kinds in meter.kinds) >= 2 * 512 * 256 * 4
    assert list(meter.kinds[0]) == list(meter.curves())

    assert list(meter.phases) == ["forward", "backward", "optimizer"]
    gradients = [kinds["gradients"] for kinds in meter.kinds]
    forward, backward, stepping = meter.phases.values()
    assert forward == 1
    assert max(gradients[: backward - 1]) == 0
    assert gradients[stepping - 1] == max(gradients)
    assert gradients[stepping - 3] < max(gradients), "the last operations of the backward"


def test_a_budget(training):
    *what, step = training
    with Meter(*what) as free:
        step()
    with Meter(*what, budget=free.peak):
        step()
    with (
        pytest.raises(MemoryError, match=r"operation \d+, \w+, needs [\d.]+ MB"),
        Meter(*what, budget=free.peak - 1),
    ):
        step()


def test_what_backward_needs_is_saved_and_let_go_after_it():
    x, weight = torch.ones(10, 4), nn.Parameter(torch.ones(4, 3))
    with SavedTensors() as saved:
        (x @ weight).sum().backward()  # saves x; the parameter is there anyway
        assert saved.peak == 160
        for _ in range(2):
            (x @ weight).exp().sum().backward()  # exp saves its result, and both are let go
    assert saved.peak == 160 + 120
