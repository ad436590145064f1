"""Schedules: order, dependencies, no deadlock, bubble, activations; the lists are torch's own."""

import itertools
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from course_utils import CourseError
from course_utils.schedules import Schedule, bubble, make, parse, rounds

KINDS = [
    ("naive", 1),
    ("GPipe", 1),
    ("1F1B", 1),
    ("zero-bubble", 1),
    *(("interleaved", v) for v in (1, 2, 3, 4)),
]


def every(ranks, micro_batches) -> Iterator[Schedule]:
    """All schedules on so many ranks, with so many micro-batches."""
    for (name, v), p, m in itertools.product(KINDS, ranks, micro_batches):
        if name != "interleaved" or (p > 1 and m % rounds(p, m) == 0):
            yield make(name, ranks=p, micro_batches=m, chunks=v)


def test_everything_once_after_what_it_needs_and_never_stuck():
    for schedule in every([1, 2, 3, 4, 8], [1, 2, 5, 8, 10, 32]):
        timeline = schedule.simulate(
            forward=1.0, backward=2.0, link=0.25
        )  # raises if ranks wait for each other
        p, m = schedule.ranks, schedule.micro_batches
        held = {
            "naive": (1,) * p,
            "GPipe": (m,) * p,
            "1F1B": tuple(min(p - i, m) for i in range(p)),
            "zero-bubble": (min(p, m),) * p,
        }
        assert schedule.held == held.get(schedule.name, schedule.held), schedule
        done = {
            tuple(s.name.split()[i] for i in (0, 1, 4)): s
            for s in timeline.spans
            if s.lane == "compute"
        }
        assert len(done) == (2 + schedule.split) * schedule.stages * schedule.micro_batches
        for (kind, micro, part), span in done.items():
            assert span.rank == int(part) % schedule.ranks
            assert span.seconds == pytest.approx(
                (2.0 if kind == "backward" else 1.0) / schedule.chunks
            )
            before = str(
                int(part) - (1 if kind == "forward" else -1)
            )  # the part that its message comes from
            if (kind, micro, before) in done and kind != "backward-weight":
                assert span.start >= done[kind, micro, before].end + 0.25 - 1e-9, (
                    schedule,
                    kind,
                    micro,
                    part,
                )
            first = {
                "backward": "forward",
                "backward-input": "forward",
                "backward-weight": "backward-input",
            }.get(kind)
            assert first is None or span.start >= done[first, micro, part].end - 1e-9, (
                schedule,
                kind,
                micro,
                part,
            )


def test_bubble_is_the_formula():
    times = [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0)]
    for schedule, (forward, backward) in itertools.product(
        every([1, 2, 4, 8], [1, 2, 8, 10, 32]), times
    ):
        p, m, v = schedule.ranks, schedule.micro_batches, schedule.chunks
        timeline = schedule.simulate(forward=forward, backward=backward)
        waits, foretold = timeline.idle(), bubble(p, m, chunks=v, split=schedule.split)
        if schedule.name == "naive":
            assert waits == pytest.approx(1 - 1 / p)
        elif m < p and schedule.name in ("interleaved", "zero-bubble"):  # too few to fill it
            assert waits > foretold - 1e-9
        elif schedule.name == "zero-bubble":
            assert waits == pytest.approx(
                (p - 1) * forward / (m * (forward + backward) + (p - 1) * forward)
            )
            assert backward != 2 * forward or waits == pytest.approx(foretold)
        else:
            assert waits == pytest.approx(foretold) == pytest.approx((p - 1) / (v * m + p - 1))


def test_the_classic_two_stage_picture():
    timeline = make("GPipe", ranks=2, micro_batches=3).simulate(backward=1)
    assert timeline.end == 8
    assert [
        t for t in range(8) if all(timeline.between(t, t + 1).busy(r) == 1 for r in (0, 1))
    ] == [1, 2, 5, 6]


def test_what_makes_no_schedule_is_said_in_words():
    for numbers, says in [
        (("interleaved", 4, 9, 2), "4 ranks take 9 in 2 rounds"),
        (("interleaved", 1, 8, 1), "needs 2 ranks or more"),
    ]:
        name, ranks, micro_batches, chunks = numbers
        with pytest.raises(CourseError, match=says):
            make(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    for texts, says in [
        (("F0 F1 B0", "F0 B0 F1 B1"), "rank 0: backward 1 is missing"),
        (("F0 F1 B0 B1", "F0 F0 B0 F1 B1"), "rank 1: forward 0 is there twice, or"),
        (("F0 F1 B0 B1", "B0 F0 F1 B1"), "rank 1: backward 0 stands before its forward"),
        (("F0 F1 B0 B1", "F0 G1"), "order of rank 1 is 'F0 G1': write"),
        (("F0 F1 B0 B1", ["F0"]), "order of rank 1 is ['F0']: write"),
        (("F0 F1 F2 B0 B1", "F0 F1 B0 B1"), "rank 0: forward 2 is there twice, or not this"),
        (("F0 F1 B0 B1", "F0 B0 F1 B1 W0 W1"), "rank 0: backward-weight 0 is missing"),
        (
            ("F0 F1 B0 W0 B1 W1", "F0 W0 B0 F1 B1 W1"),
            "rank 1: backward-weight 0 stands before its backward-input",
        ),
    ]:
        with pytest.raises(CourseError, match=re.escape(says)):
            parse(texts, 2)
    with pytest.raises(
        CourseError,
        match="rank 0 waits for gradients 0 from rank 1; rank 1 waits for activations 1",
    ):
        parse(["F0 B0 F1 B1", "F0 F1 B0 B1"], 2).simulate()


def test_torchs_own_lists_for_every_number_of_micro_batches():
    from torch.distributed.pipelining import ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble

    names = {
        "forward": "FORWARD",
        "backward": "FULL_BACKWARD",
        "backward-input": "BACKWARD_INPUT",
        "backward-weight": "BACKWARD_WEIGHT",
    }
    kinds = [
        (ScheduleInterleavedZeroBubble, "zero-bubble", 1),
        *((ScheduleInterleaved1F1B, "interleaved", v) for v in (1, 2, 3)),
    ]
    for (kind, name, chunks), ranks, m in itertools.product(kinds, (2, 3, 4, 8), range(1, 25)):
        stages = [
            SimpleNamespace(
                group_size=ranks,
                group_rank=0,
                num_stages=ranks * chunks,
                stage_index=i * ranks,
                has_backward=True,
                is_first=i == 0,
                is_last=False,
                submod=None,
            )
            for i in range(chunks)
        ]  # with only what torch reads
        try:
            theirs = kind(stages, m, loss_fn=lambda out, y: 0).pipeline_order
        except (
            ValueError
        ):  # it has its rule for interleaved with zero-bubble, too, which needs none
            if name == "interleaved":
                with pytest.raises(CourseError, match="in equal rounds"):
                    make(name, ranks=ranks, micro_batches=m, chunks=chunks)
            continue
        ours = make(name, ranks=ranks, micro_batches=m, chunks=chunks)
        assert [[(names[s.name], s.stage, s.micro) for s in order] for order in ours.orders] == [
            [
                (a.computation_type.name, a.stage_index, a.microbatch_index)
                for a in theirs[rank]
                if a
            ]
            for rank in range(ranks)
        ], (name, ranks, m)


def is_carried_out(schedule: Schedule) -> bool:
    """Play the lists where a message has no tag, and a rank that sends or receives waits for the other one."""
    at, through = [0] * schedule.ranks, set()

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
                    assert other.message == step.message, (
                        f"rank {step.peer} takes {step} for {other}"
                    )
                    through.add((step.peer, step.message))
                    at[step.peer] += 1
                elif (need := schedule.messages(step)[0]) and (rank, need.message) not in through:
                    break
                at[rank], moved = at[rank] + 1, True
    return not any(map(now, range(schedule.ranks)))


def test_no_schedule_waits_for_ever_on_a_link_without_tags():
    for schedule in every([1, 2, 3, 4, 6, 8], [1, 2, 3, 4, 6, 7, 8, 12, 21]):
        assert is_carried_out(schedule), schedule
        messages = [
            step.message for mine in schedule.instructions for step in mine if step.name == "send"
        ]
        assert (
            len(set(messages))
            == len(messages)
            == 2 * (schedule.stages - 1) * schedule.micro_batches
        )
        for step, after in (
            pair for mine in schedule.instructions for pair in itertools.pairwise(mine)
        ):
            # No receive earlier than it must: before what needs it, or before a send that comes later.
            assert (
                step.name != "receive"
                or after.peer is not None
                or schedule.messages(after)[0] == step
            ), schedule
    assert not is_carried_out(parse(["F0 B0 F1 B1", "F0 F1 B0 B1"], 2))
