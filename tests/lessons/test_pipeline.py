"""A schedule's lists on real ranks: the whole model's gradients, the memory foretold, the pace."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course_utils import launch
from course_utils.lessons import memory, models, pipeline
from course_utils.schedules import make

SIZES = {"width": 16, "heads": 2, "context": 8}


def test_split_is_the_whole_model():
    model = models.GPT(20, layers=5, **SIZES)
    x = torch.arange(8)[None]
    assert torch.equal(torch.nn.Sequential(*pipeline.split(model, 4))(x), model(x))


def step(schedule, x, y, pace):
    """Losses, gradients by name and bytes held at the most: of this rank, in a second step."""
    model = models.GPT(20, layers=8, **SIZES)
    parts = pipeline.split(model, schedule.stages)
    mine = {i: parts[i] for i in range(dist.get_rank(), schedule.stages, schedule.ranks)}
    for seconds in ((0.0, 0.0), pace):
        model.zero_grad()
        dist.barrier()
        with memory.SavedTensors() as saved:
            losses = pipeline.execute(schedule, mine, x, y, width=16, pace=seconds)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return losses, gradients, saved.peak


@pytest.mark.parametrize(
    ("kind", "chunks"), [("naive", 1), ("GPipe", 1), ("1F1B", 1), ("interleaved", 2)]
)
def test_on_real_ranks_it_is_the_whole_model_at_its_pace(kind, chunks):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(20, (8, 8), generator=generator) for _ in range(2))
    model = models.GPT(20, layers=8, **SIZES)
    loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    schedule = make(kind, ranks=4, micro_batches=8, chunks=chunks)
    run = launch(step, schedule, x, y, (0.02 / chunks, 0.04 / chunks), ranks=4, device="cpu")

    assert sum(run.results[3][0]).item() / 8 == pytest.approx(loss.item(), abs=1e-5)
    gradients = {name: grad for result in run.results for name, grad in result[1].items()}
    for name, p in model.named_parameters():
        assert torch.allclose(gradients[name], p.grad, atol=1e-5), name
    peaks = [peak for *_, peak in run.results]
    assert peaks[1] / peaks[2] == pytest.approx(schedule.held[1] / schedule.held[2], rel=0.02)

    done = [[] for _ in range(4)]
    timeline = run.timeline.last("forward 0 of part 0")
    for span in timeline.spans:
        if span.role in ("forward", "backward"):
            done[span.rank].append(span.name)
    assert done == [[step.label for step in order] for order in schedule.orders]
    # The bubble is there, too: ranks do wait for each other.
    assert timeline.seconds > 0.99 * schedule.simulate(forward=0.02, backward=0.04).seconds
