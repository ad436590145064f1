"""A schedule's lists on real ranks: the whole model's gradients, the memory foretold, the order."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course_utils import RankError, launch
from course_utils.lessons import memory, models, pipeline
from course_utils.schedules import make

SIZES = {"width": 16, "heads": 2, "context": 8}


def test_split_is_the_whole_model():
    model = models.GPT(20, layers=5, **SIZES)
    x = torch.arange(8)[None]
    assert torch.equal(torch.nn.Sequential(*pipeline.split(model, 4))(x), model(x))


def step(schedule, x, y):
    """Losses, gradients by name and bytes held at the most, of this rank."""
    model = models.GPT(20, layers=8, **SIZES)
    parts = pipeline.split(model, schedule.stages)
    mine = {i: parts[i] for i in range(dist.get_rank(), schedule.stages, schedule.ranks)}
    with memory.SavedTensors() as saved:
        losses = pipeline.execute(schedule, mine, x, y, width=16, pace=(0.0, 0.0))
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return losses, gradients, saved.peak


def test_a_schedule_for_other_ranks_is_refused():
    x = torch.zeros(8, 8, dtype=torch.int64)
    with pytest.raises(RankError, match="GPipe is a schedule for 4 ranks, not 1"):
        launch(step, make("GPipe", ranks=4, micro_batches=8), x, x, ranks=1, device="cpu")


@pytest.mark.parametrize(("kind", "chunks"), [("1F1B", 1), ("interleaved", 2)])
def test_on_real_ranks_it_is_the_whole_model_in_the_order_of_the_schedule(kind, chunks):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(20, (8, 8), generator=generator) for _ in range(2))
    model = models.GPT(20, layers=8, **SIZES)
    loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    schedule = make(kind, ranks=4, micro_batches=8, chunks=chunks)
    run = launch(step, schedule, x, y, ranks=4, device="cpu")

    assert sum(run.results[3][0]).item() / 8 == pytest.approx(loss.item(), abs=1e-5)
    gradients = {name: grad for result in run.results for name, grad in result[1].items()}
    for name, p in model.named_parameters():
        assert torch.allclose(gradients[name], p.grad, atol=1e-5), name
    peaks = [peak for *_, peak in run.results]
    assert peaks[1] / peaks[2] == pytest.approx(schedule.held[1] / schedule.held[2], rel=0.02)

    done = [[] for _ in range(4)]
    for span in run.timeline.spans:
        if span.role in ("forward", "backward"):
            done[span.rank].append(span.name)
    assert done == [[step.label for step in order] for order in schedule.orders]


def test_a_step_that_is_done_early_sleeps_for_the_rest_of_its_pace(monkeypatch):
    slept, clock = [], iter([1.0, 1.25])
    time = SimpleNamespace(perf_counter=lambda: next(clock), sleep=slept.append)
    monkeypatch.setattr(pipeline, "time", time)
    with pipeline.paced("forward", 1.0, torch.device("cpu")):
        pass
    assert slept == [0.75]
