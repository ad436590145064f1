"""Schedules: order, dependencies, no deadlock, bubble, activations; the lists are torch's own."""

import itertools
import re
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils import CourseError, Span, Timeline
from course_utils.schedules import Schedule, bubble, make, parse, rounds
from tests.tables import rows

PARTS = (1, 2, 3, 4)  # parts of a rank in the interleaved schedule; the others have one
FORWARD, BACKWARD, LINK = 1.0, 2.0, 0.25


def every(ranks, micro_batches) -> Iterator[Schedule]:
    """All schedules on so many ranks, with so many micro-batches."""
    for p, m in itertools.product(ranks, micro_batches):
        for name in ("naive", "GPipe", "1F1B", "zero-bubble"):
            yield make(name, ranks=p, micro_batches=m)
        if p > 1 and m % rounds(p, m) == 0:
            for v in PARTS:
                yield make("interleaved", ranks=p, micro_batches=m, chunks=v)


def steps_of(timeline: Timeline) -> dict[tuple[str, int, int], Span]:
    """The span of each step, by kind, micro-batch and part."""
    found = {}
    for span in timeline.spans:
        if span.lane == "compute":
            kind, micro, _, _, part = span.name.split()
            found[kind, int(micro), int(part)] = span
    return found


def test_everything_after_the_messages_it_needs_and_never_stuck():
    for schedule in every([1, 2, 3, 4, 8], [1, 2, 5, 8, 10, 32]):
        # This raises if ranks wait for each other.
        timeline = schedule.simulate(forward=FORWARD, backward=BACKWARD, link=LINK)
        done = steps_of(timeline)
        kinds = 3 if schedule.split else 2
        assert len(done) == kinds * schedule.stages * schedule.micro_batches

        for (kind, micro, part), span in done.items():
            takes = BACKWARD if kind == "backward" else FORWARD
            assert span.seconds == pytest.approx(takes / schedule.chunks)
            assert span.rank == part % schedule.ranks

            sender = part - 1 if kind == "forward" else part + 1
            message = done.get((kind, micro, sender))
            if message and kind != "backward-weight":
                assert span.start >= message.end + LINK - 1e-9, (schedule, span)


def test_micro_batches_held():
    for p, m in itertools.product([1, 2, 3, 4, 8], [1, 2, 5, 8, 10, 32]):
        held = {
            "naive": [1] * p,
            "GPipe": [m] * p,
            "1F1B": [min(p - rank, m) for rank in range(p)],
            "zero-bubble": [min(p, m)] * p,
        }
        for name, wanted in held.items():
            assert list(make(name, ranks=p, micro_batches=m).held) == wanted


def test_bubble_is_the_formula():
    times = [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0)]
    schedules = every([1, 2, 4, 8], [1, 2, 8, 10, 32])
    for schedule, (forward, backward) in itertools.product(schedules, times):
        p, m, v = schedule.ranks, schedule.micro_batches, schedule.chunks
        waits = schedule.simulate(forward=forward, backward=backward).idle()
        foretold = bubble(p, m, chunks=v, split=schedule.split)

        if schedule.name == "naive":
            assert waits == pytest.approx(1 - 1 / p)
        elif m < p and schedule.name in ("interleaved", "zero-bubble"):  # too few to fill it
            assert waits > foretold - 1e-9
        elif schedule.name == "zero-bubble":
            empty = (p - 1) * forward
            assert waits == pytest.approx(empty / (m * (forward + backward) + empty))
            if backward == 2 * forward:
                assert waits == pytest.approx(foretold)
        else:
            assert waits == pytest.approx(foretold) == pytest.approx((p - 1) / (v * m + p - 1))


MISTAKES = """
order of rank 0    order of rank 1    what is said
F0 F1 B0           F0 B0 F1 B1        rank 0: backward 1 is missing
F0 F1 B0 B1        F0 F0 B0 F1 B1     rank 1: forward 0 is there twice, or
F0 F1 B0 B1        F0 G1              order of rank 1, 'G1' is not understood
F0 F1 F2 B0 B1     F0 F1 B0 B1        rank 0: forward 2: micro-batches are 0 to 1 here
F0 F1 B0 B1        F0 B0 F1 B1 W0 W1  rank 0: backward-weight 0 is missing (W0)
F0 F1 B0 W0 B1 W1  F0 W0 B0 F1 B1 W1  rank 1: backward-weight 0 stands before its backward-input
"""


@pytest.mark.parametrize(("first", "second", "says"), rows(MISTAKES))
def test_orders_that_make_no_schedule_are_said_in_words(first, second, says):
    with pytest.raises(CourseError, match=re.escape(says)):
        parse([first, second], 2)


def test_what_makes_no_schedule_is_said_in_words():
    with pytest.raises(CourseError, match="no schedule '1f1b': take one of naive, GPipe, 1F1B"):
        make("1f1b", ranks=2, micro_batches=2)

    with pytest.raises(CourseError, match="GPipe got micro_batches=0: give a whole number from 1"):
        make("GPipe", ranks=2, micro_batches=0)
    with pytest.raises(CourseError, match="GPipe got chunks=2: a rank has one part"):
        make("GPipe", ranks=2, micro_batches=2, chunks=2)
    with pytest.raises(CourseError, match="needs 2 ranks or more"):
        make("interleaved", ranks=1, micro_batches=8)
    with pytest.raises(CourseError, match=r"order of rank 1, \"\['F0'\]\" is not understood"):
        parse(["F0 F1 B0 B1", ["F0"]], 2)
    says = "rank 0 waits for gradients 0 from rank 1; rank 1 waits for activations 1"
    with pytest.raises(CourseError, match=says):
        parse(["F0 B0 F1 B1", "F0 F1 B0 B1"], 2).simulate()


IN_TORCH = {
    "forward": "FORWARD",
    "backward": "FULL_BACKWARD",
    "backward-input": "BACKWARD_INPUT",
    "backward-weight": "BACKWARD_WEIGHT",
}


def lists_of_torch(kind, ranks: int, micro_batches: int, chunks: int) -> list[list[tuple]]:
    """What each rank does, by one of torch's schedules; ValueError where it has none."""
    stages = []
    for i in range(chunks):
        stage = SimpleNamespace(  # with only what torch reads
            group_size=ranks,
            group_rank=0,
            num_stages=ranks * chunks,
            stage_index=i * ranks,
            has_backward=True,
            is_first=i == 0,
            is_last=False,
            submod=None,
        )
        stages.append(stage)
    orders = kind(stages, micro_batches, loss_fn=lambda out, y: 0).pipeline_order
    return [
        [(a.computation_type.name, a.stage_index, a.microbatch_index) for a in orders[rank] if a]
        for rank in range(ranks)
    ]


def test_torchs_own_lists_for_every_number_of_micro_batches():
    from torch.distributed.pipelining import ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble

    kinds: list[tuple] = [(ScheduleInterleavedZeroBubble, "zero-bubble", 1)]
    kinds += [(ScheduleInterleaved1F1B, "interleaved", v) for v in (1, 2, 3)]
    for (kind, name, chunks), ranks, m in itertools.product(kinds, (2, 3, 8), range(1, 20)):
        try:
            theirs = lists_of_torch(kind, ranks, m, chunks)
        except ValueError:  # its zero-bubble has the rule for interleaved, too, and ours needs none
            if name == "interleaved":
                with pytest.raises(CourseError, match=f"{ranks} ranks take {m} in .* rounds"):
                    make(name, ranks=ranks, micro_batches=m, chunks=chunks)
            continue
        ours = make(name, ranks=ranks, micro_batches=m, chunks=chunks)
        for order, wanted in zip(ours.orders, theirs, strict=True):
            steps = [(IN_TORCH[step.name], step.stage, step.micro) for step in order]
            assert steps == wanted, (name, ranks, m)


def is_carried_out(schedule: Schedule) -> bool:
    """Play the lists on a link without tags, where who sends or receives waits for the other."""
    at = [0] * schedule.ranks
    through = set()

    def now(rank):
        return next(iter(schedule[rank][at[rank] :]), None)

    moved = True
    while moved:
        moved = False
        for rank in range(schedule.ranks):
            while (step := now(rank)) and step.name != "receive":
                if step.name == "send":
                    other = now(step.peer)
                    if other is None or (other.name, other.peer) != ("receive", rank):
                        break
                    assert other.message == step.message, f"rank {step.peer}: {step} for {other}"
                    through.add((step.peer, step.message))
                    at[step.peer] += 1
                else:
                    need, _ = schedule.messages(step)
                    if need and (rank, need.message) not in through:
                        break
                at[rank] += 1
                moved = True
    return not any(map(now, range(schedule.ranks)))


@st.composite
def written(draw):
    """A schedule in which each step comes after what it needs on its own rank."""
    letters = draw(st.sampled_from(["FB", "FBW"]))
    micros = [*range(draw(st.integers(1, 4)))]
    texts = []
    for _ in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(micros * len(letters)))
        steps = [f"{letters[order[:i].count(micro)]}{micro}" for i, micro in enumerate(order)]
        texts.append(" ".join(steps))
    return parse(texts, len(micros))


MADE = st.sampled_from([*every([2, 3, 4, 6, 8], [1, 2, 3, 7, 8, 12, 21])])


@given(MADE | written())
def test_a_schedule_ends_if_a_link_without_tags_can_carry_it_out(schedule):
    if not is_carried_out(schedule):
        with pytest.raises(CourseError, match="never ends, because each waits for another"):
            schedule.simulate()
        return
    assert schedule.simulate().spans
    # No receive earlier than it must: before what needs it, or before a send that comes later.
    for mine in schedule.instructions:
        for step, after in itertools.pairwise(mine):
            if step.name == "receive" and after.peer is None:
                assert schedule.messages(after)[0] == step, schedule


@pytest.mark.parametrize("letters", ["FB", "FBW"])
def test_an_order_is_valid_if_each_step_comes_after_what_it_needs(letters):
    steps = [f"{letter}{micro}" for micro in range(2) for letter in letters]
    for order in itertools.permutations(steps):
        is_valid = sorted(order, key=lambda step: step[1]) == steps
        with nullcontext() if is_valid else pytest.raises(CourseError, match="stands before"):
            parse([" ".join(order)], 2)
