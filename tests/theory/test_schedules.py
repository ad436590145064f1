"""Schedules: order, dependencies, no deadlock, bubble, activations; the same lists give the same result on ranks."""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.functional import cross_entropy

from course_utils import CourseError, launch, pictures
from course_utils.lessons import memory, models, pipeline
from course_utils.theory.schedules import bubble, idle, make, parse

PLAIN = [("naive", 1), ("GPipe", 1), ("1F1B", 1)]
INTERLEAVED = [("interleaved", chunks) for chunks in (1, 2, 3, 4)]
ALL = [
    make(name, ranks=p, micro_batches=m, chunks=v)
    for (name, v), p, m in itertools.product([*PLAIN, *INTERLEAVED], [1, 2, 3, 4, 8], [1, 2, 5, 8, 12, 32])
    if name != "interleaved" or (p > 1 and m % p == 0)
]


def name(schedule):
    return f"{schedule.name}-{schedule.ranks}-{schedule.micro_batches}-{schedule.chunks}"


@pytest.mark.parametrize("schedule", ALL, ids=name)
def test_everything_once_after_what_it_needs_and_never_stuck(schedule):
    timeline = schedule.simulate(forward=1.0, backward=2.0, link=0.25)  # raises if ranks wait for each other
    done = {tuple(s.name.split()[i] for i in (0, 1, 4)): s for s in timeline.spans if s.lane == "compute"}
    assert len(done) == 2 * schedule.stages * schedule.micro_batches
    for (kind, micro, part), span in done.items():
        assert span.rank == int(part) % schedule.ranks
        before = int(part) - (1 if kind == "forward" else -1)
        if 0 <= before < schedule.stages:
            assert span.start >= done[kind, micro, str(before)].end + 0.25 - 1e-9
        if kind == "backward":
            assert span.start >= done["forward", micro, part].end - 1e-9


@pytest.mark.parametrize("schedule", ALL, ids=name)
def test_every_message_has_one_sender_and_one_receiver(schedule):
    ends = {"send": [], "receive": []}
    for rank in range(schedule.ranks):
        for step in (step for step in schedule[rank] if step.name in ends):
            pair = (rank, step.peer) if step.name == "send" else (step.peer, rank)
            ends[step.name].append((step.message, pair))
    assert sorted(ends["send"]) == sorted(ends["receive"])
    assert len(set(ends["send"])) == len(ends["send"]) == 2 * (schedule.stages - 1) * schedule.micro_batches


@pytest.mark.parametrize(("forward", "backward"), [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0)])
@pytest.mark.parametrize("schedule", ALL, ids=name)
def test_bubble_is_the_formula(schedule, forward, backward):
    p, m, v = schedule.ranks, schedule.micro_batches, schedule.chunks
    timeline = schedule.simulate(forward=forward, backward=backward)
    if schedule.name == "naive":
        assert idle(timeline) == pytest.approx(1 - 1 / p)
    else:
        assert idle(timeline) == pytest.approx((p - 1) / (v * m + p - 1))
        assert idle(timeline) == pytest.approx(bubble(p, m, chunks=v))
        waits = timeline.end - m * (forward + backward)
        assert waits == pytest.approx((p - 1) * (forward + backward) / v)  # smaller by the number of chunks


@pytest.mark.parametrize("schedule", ALL, ids=name)
def test_activations_held(schedule):
    p, m = schedule.ranks, schedule.micro_batches
    expected = {
        "naive": [1.0] * p,
        "GPipe": [float(m)] * p,
        "1F1B": [float(min(p - i, m)) for i in range(p)],
    }
    if schedule.name in expected:
        assert list(schedule.held) == expected[schedule.name]
    elif schedule.chunks > 1 and m >= 2 * p:
        one = make("1F1B", ranks=p, micro_batches=m)
        assert all(a > b for a, b in zip(schedule.held, one.held, strict=True))


def test_the_classic_two_stage_picture():
    timeline = make("GPipe", ranks=2, micro_batches=3).simulate()
    busy = [t for t in range(8) if all(timeline.between(t, t + 1).busy(rank) == 1 for rank in (0, 1))]
    assert timeline.end == 8
    assert busy == [1, 2, 5, 6]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpipe", {}), r"no schedule 'gpipe'. Did you mean 'GPipe'\?"),
        (("zero bubble", {}), "There are naive, GPipe, 1F1B, interleaved"),
        (("GPipe", {"ranks": 0}), "ranks=0.*whole number from 1"),
        (("GPipe", {"micro_batches": -1}), "micro_batches=-1.*whole number from 1"),
        (("GPipe", {"micro_batches": 2.0}), "micro_batches=2.0.*whole number"),
        (("interleaved", {"chunks": True}), "chunks=True.*whole number"),
        (("1F1B", {"chunks": 2}), "1F1B gives each rank one part.*interleaved"),
        (("interleaved", {"micro_batches": 3, "chunks": 2}), "3 is no multiple of 4: take 4"),
        (("interleaved", {"micro_batches": 10, "chunks": 2}), "10 is no multiple of 4: take 12"),
        (("interleaved", {"ranks": 1}), "needs 2 or more"),
    ],
)
def test_numbers_that_make_no_schedule(arguments, says):
    kind, numbers = arguments
    with pytest.raises(CourseError, match=says):
        make(kind, **({"ranks": 4, "micro_batches": 8} | numbers))


@pytest.mark.parametrize(("what", "value"), [("forward", 0), ("backward", -1), ("link", "1"), ("forward", True)])
def test_times_that_are_none(what, value):
    with pytest.raises(CourseError, match=f"simulate.{what}="):
        make("GPipe", ranks=2, micro_batches=2).simulate(**{what: value})


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (("F0 F1 B0", "F0 B0 F1 B1"), "rank 0: backward 1 is missing"),
        (("F0 F1 B0 B1", "F0 F0 B0 F1 B1"), "rank 1: forward 0 is there twice"),
        (("F0 F1 B0 B1", "B0 F0 F1 B1"), "rank 1: backward 0 stands before its forward"),
        (("F0 F1 B0 B1", "F0 G1"), "order of rank 1 is 'F0 G1': write F and B"),
        (("F0 F1 B0 B1", ["F0"]), "order of rank 1 is .'F0'.: write F and B"),
        (("F0 F1 F2 B0 B1", "F0 F1 B0 B1"), "rank 0: forward 2 of part 0 is not this rank's"),
    ],
)
def test_orders_that_are_not_complete(texts, says):
    with pytest.raises(CourseError, match=says):
        parse(texts, 2)


def test_a_deadlock_is_said_in_words():
    stuck = parse(["F0 B0 F1 B1", "F0 F1 B0 B1"], 2)
    with pytest.raises(CourseError, match="rank 0 waits for gradients 0 from rank 1; rank 1 waits for activations 1"):
        stuck.simulate()


def test_chart_says_what_it_shows():
    one = make("1F1B", ranks=4, micro_batches=8)
    picture = pictures.pipelines({"predicted": one.simulate()}, title="Four ranks", foot="No pace.")
    assert picture.alt == "Four ranks. Gantt chart of 4 ranks. predicted: 27.3% of the time is waiting. No pace."
    assert picture.png.startswith(b"\x89PNG")
    assert pictures.pipelines({"predicted": one.simulate()}, unit="forwards").png.startswith(b"\x89PNG")
    with pytest.raises(CourseError, match="needs timelines with spans"):
        pictures.pipelines({})


def test_split_is_the_whole_model():
    model = models.GPT(20, layers=4, width=16, heads=2, context=8)
    x = torch.arange(8)[None]
    out = x
    for part in pipeline.split(model, 4):
        out = part(out)
    assert torch.equal(out, model(x))
    with pytest.raises(CourseError, match="divide the model's 4 blocks"):
        pipeline.split(model, 3)


def step(schedule, x, y):
    """Losses, gradients by name, bytes held at the most and after the step, of this rank."""
    model = models.GPT(20, layers=8, width=16, heads=2, context=8)
    parts = pipeline.split(model, schedule.stages)
    mine = {i: parts[i] for i in range(dist.get_rank(), schedule.stages, schedule.ranks)}
    with memory.Kept() as held:
        losses = pipeline.execute(schedule, mine, x, y, width=16, pace=(0.0, 0.0))
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return losses, gradients, held.most, held.now


@pytest.mark.parametrize(("kind", "chunks"), [("naive", 1), ("GPipe", 1), ("1F1B", 1), ("interleaved", 2)])
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

    done = [[s.name for s in run.timeline.spans if s.rank == r and s.lane == "compute" and s.role != "idle"]
            for r in range(4)]  # fmt: skip
    assert done == [[f"{i.name} {i.micro} of part {i.stage}" for i in order] for order in schedule.orders]


def at_a_pace(schedule, x, y, pace):
    """One step by hand, once everything is warm."""
    model = models.GPT(20, layers=8, width=16, heads=2, context=8)
    parts = pipeline.split(model, schedule.stages)
    mine = {i: parts[i] for i in range(dist.get_rank(), schedule.stages, schedule.ranks)}
    pipeline.execute(schedule, mine, x, y, width=16, pace=(0.0, 0.0))
    dist.barrier()
    pipeline.execute(schedule, mine, x, y, width=16, pace=pace)


def last_step(run):
    begin = max(s.start for s in run.timeline.spans if s.name == "forward 0 of part 0")
    return run.timeline.between(begin, run.timeline.end)


@pytest.mark.parametrize(("kind", "chunks"), [("GPipe", 1), ("1F1B", 1), ("interleaved", 2)])
def test_measured_bubble_is_the_formula(kind, chunks):
    x, y = torch.zeros(8, 8, dtype=torch.int64), torch.zeros(8, 8, dtype=torch.int64)
    schedule = make(kind, ranks=4, micro_batches=4, chunks=chunks)
    for _ in range(3):  # other programs on the same cores may disturb one of them
        run = launch(at_a_pace, schedule, x, y, (0.08 / chunks,) * 2, ranks=4, device="cpu", time_limit=60)
        measured = idle(last_step(run))
        if measured == pytest.approx(bubble(4, 4, chunks=chunks), rel=0.1):
            break
    else:
        pytest.fail(f"measured {measured}, formula {bubble(4, 4, chunks=chunks)}")


def with_torch(schedule, x, y):
    rank = dist.get_rank()
    model = models.GPT(20, layers=8, width=16, heads=2, context=8)
    parts = pipeline.split(model, schedule.stages)
    stages = [pipeline.watch(PipelineStage(parts[i], i, schedule.stages, torch.device("cpu")), pace=(0.0, 0.0))
              for i in range(rank, schedule.stages, schedule.ranks)]  # fmt: skip
    kind = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}[schedule.name]
    theirs = kind(stages if schedule.name == "interleaved" else stages[0], schedule.micro_batches,
                  loss_fn=lambda out, y: cross_entropy(out.flatten(0, 1), y.flatten()))  # fmt: skip
    losses = []
    theirs.step(*([x] if rank == 0 else []), **({"target": y, "losses": losses} if rank == 3 else {}))
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("kind", "chunks"), [("GPipe", 1), ("1F1B", 1), ("interleaved", 2)])
@pytest.mark.parametrize("micro_batches", [4, 8])
def test_torch_does_the_same_in_the_same_order(kind, chunks, micro_batches):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(20, (8, 8), generator=generator) for _ in range(2))
    schedule = make(kind, ranks=4, micro_batches=micro_batches, chunks=chunks)
    ours, theirs = (launch(f, schedule, x, y, ranks=4, device="cpu", time_limit=60) for f in (step, with_torch))
    done = [[[s.name for s in run.timeline.spans if s.rank == r and s.role in ("forward", "backward")]
             for r in range(4)] for run in (ours, theirs)]  # fmt: skip
    assert done[0] == done[1]
    assert torch.allclose(torch.stack(ours.results[3][0]), torch.stack(theirs.results[3][0]), atol=1e-6)
    for a, b in zip(ours.results, theirs.results, strict=True):
        assert a[1].keys() == b[1].keys()
        assert all(torch.allclose(a[1][name], b[1][name], atol=1e-6) for name in a[1])


def test_a_batch_that_cannot_be_cut():
    x = torch.zeros(6, 8, dtype=torch.int64)
    with pytest.raises(CourseError, match="batch of 6 cannot be cut into 4 equal"):
        pipeline.execute(make("GPipe", ranks=1, micro_batches=4), {}, x, x, width=16, pace=(0.0, 0.0))
