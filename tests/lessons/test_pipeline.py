"""A schedule's lists on real ranks: the whole model's gradients, the memory foretold, the pace."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course_utils import launch
from course_utils.lessons import memory, models, pipeline
from course_utils.schedules import make


def test_split_is_the_whole_model():
    model = models.GPT(20, layers=4, width=16, heads=2, context=8)
    x = torch.arange(8)[None]
    out = x
    for part in pipeline.split(model, 4):
        out = part(out)
    assert torch.equal(out, model(x))


def step(schedule, x, y):
    """Losses, gradients by name, bytes held at the most and after the step, of this rank."""
    model = models.GPT(20, layers=8, width=16, heads=2, context=8)
    parts = pipeline.split(model, schedule.stages)
    mine = {i: parts[i] for i in range(dist.get_rank(), schedule.stages, schedule.ranks)}
    with memory.SavedTensors() as saved:
        losses = pipeline.execute(schedule, mine, x, y, width=16, pace=(0.0, 0.0))
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return losses, gradients, saved.peak, saved.now


KINDS = [("GPipe", 1), ("1F1B", 1), ("interleaved", 2)]


@pytest.mark.parametrize(("kind", "chunks"), [("naive", 1), *KINDS])
def test_on_real_ranks_it_is_the_whole_model(kind, chunks):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(20, (8, 8), generator=generator) for _ in range(2))
    model = models.GPT(20, layers=8, width=16, heads=2, context=8)
    loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    schedule = make(kind, ranks=4, micro_batches=8, chunks=chunks)
    run = launch(step, schedule, x, y, ranks=4, device="cpu", time_limit=60)

    assert sum(run.results[3][0]).item() / 8 == pytest.approx(loss.item(), abs=1e-5)
    gradients = {name: grad for result in run.results for name, grad in result[1].items()}
    for name, p in model.named_parameters():
        assert torch.allclose(gradients[name], p.grad, atol=1e-5), name
    most, now = zip(*(result[2:] for result in run.results), strict=True)
    assert now == (0, 0, 0, 0)
    assert most[1] / most[2] == pytest.approx(schedule.held[1] / schedule.held[2], rel=0.02)
    eight = launch(step, make("GPipe", ranks=4, micro_batches=8), x, y, ranks=4, device="cpu").results[1][2]
    assert 8 * most[1] / eight == pytest.approx(schedule.held[1], rel=0.02)

    done = [[s.name for s in run.timeline.spans if s.rank == r and s.lane == "compute" and s.role != "idle"]
            for r in range(4)]
    assert done == [[f"{i.name} {i.micro} of part {i.stage}" for i in order] for order in schedule.orders]


def at_a_pace(schedule, x, y, pace):
    """One step by hand, once everything is warm."""
    model = models.GPT(20, layers=8, width=16, heads=2, context=8)
    parts = pipeline.split(model, schedule.stages)
    mine = {i: parts[i] for i in range(dist.get_rank(), schedule.stages, schedule.ranks)}
    pipeline.execute(schedule, mine, x, y, width=16, pace=(0.0, 0.0))
    dist.barrier()
    pipeline.execute(schedule, mine, x, y, width=16, pace=pace)


@pytest.mark.parametrize(("kind", "chunks"), KINDS)
def test_nothing_is_faster_than_its_pace(kind, chunks):
    x, y = torch.zeros(8, 8, dtype=torch.int64), torch.zeros(8, 8, dtype=torch.int64)
    schedule = make(kind, ranks=4, micro_batches=4, chunks=chunks)
    pace = 0.06 / chunks, 0.12 / chunks
    run = launch(at_a_pace, schedule, x, y, pace, ranks=4, device="cpu", time_limit=60)
    step = run.timeline.last("forward 0 of part 0")
    foretold = schedule.simulate(forward=0.06, backward=0.12)
    work = ("forward", "backward")
    measured = {(span.rank, span.name): span.seconds for span in step.spans if span.role in work}
    assert measured.keys() == {(span.rank, span.name) for span in foretold.spans if span.role in work}
    for span in foretold.spans:
        assert measured.get((span.rank, span.name), span.seconds) > 0.99 * span.seconds
    assert step.seconds > 0.99 * foretold.seconds  # with the bubble: ranks do wait for each other
