"""`Meter` counts what the allocator hands out, by kind, once however often it is looked at, and keeps to a budget."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from course_utils.lessons import models
from course_utils.lessons.meter import KINDS, BudgetExceeded, Meter


def step(model, optimizer, x, y):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def training():
    model = models.mlp(256)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(512, 64), torch.randint(10, (512,))
    step(model, optimizer, x, y)
    return model, optimizer, x, y


def test_it_counts_what_the_allocator_counts(training, tmp_path):
    with Meter(*training[:2]) as meter, profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step(*training)
    watched.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    events = [event["args"] for event in trace if event.get("name") == "[memory]"]
    growth = max(e["Total Allocated"] for e in events) - events[0]["Total Allocated"] + events[0]["Bytes"]
    assert meter.peak - meter.before == growth


def test_kinds(training):
    model, optimizer, x, y = training
    parameters = 4 * sum(p.numel() for p in model.parameters())
    with Meter(model, optimizer) as meter:
        meter.phase = "forward"
        loss = nn.functional.cross_entropy(model(x), y)
        meter.phase = "backward"
        loss.backward()
        meter.phase = "end"
        loss.detach() + 0
    end, forward = meter.peaks()["end"], meter.peaks()["forward"]
    assert tuple(end) == KINDS
    assert (end["parameters"], end["gradients"]) == (parameters, parameters)
    assert end["optimizer states"] == pytest.approx(2 * parameters, rel=1e-3)  # and a counter each
    assert forward["gradients"] == 0
    assert forward["activations"] >= 2 * 512 * 256 * 4
    assert end["activations"] < 1000


def test_views_count_once_and_what_is_gone_does_not():
    with Meter(nn.Linear(1, 1)) as meter:
        x = torch.zeros(1000)
        views = [x[1:], x.view(10, 100), x[None]]
        y = torch.zeros(500)
        assert sum(meter.samples[-1][1].values()) - meter.before == 6000
        del x
        z = torch.zeros(1)
        assert sum(meter.samples[-1][1].values()) - meter.before == 6004, "views keep it"
        del views, y
        z = z + 1
    assert sum(meter.samples[-1][1].values()) - meter.before <= 8


def test_a_budget(training):
    model, optimizer, x, y = training
    with Meter(model, optimizer) as free:
        step(model, optimizer, x, y)
    with Meter(model, optimizer, budget=free.peak):
        step(model, optimizer, x, y)
    with pytest.raises(BudgetExceeded, match=r"needs [\d.]+ MB at \w+, and the budget is"):  # noqa: SIM117
        with Meter(model, optimizer, budget=free.peak - 1):
            step(model, optimizer, x, y)
