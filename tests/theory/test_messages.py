"""Messages of a schedule never wait for each other, on a link that does them in the order in which they are posted."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from course_utils.theory.messages import makes, needs
from course_utils.theory.schedules import make, parse, rounds

PLAIN = [(name, 1) for name in ("naive", "GPipe", "1F1B", "zero-bubble")]
SIZES = itertools.product([*PLAIN, *(("interleaved", v) for v in (1, 2, 3, 4))],
                          range(1, 9), [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 21, 32])
ALL = [make(name, ranks=p, micro_batches=m, chunks=v) for (name, v), p, m in SIZES
       if name != "interleaved" or (p > 1 and m % rounds(p, m) == 0)]


def is_carried_out(lists, *, ranks, stages, queue, blocking):
    """Play the lists on a link without tags: a send and its receive end when both are the first in their queues.

    queue: "pair": a rank has a queue for each peer, as nccl's communicators of two ranks; "rank": one for all peers, as
    nccl's communicator of the whole group. blocking: a rank that posts goes on only when the message is through.
    A forward or backward waits for what it needs.
    """
    at, queues, through = [0] * ranks, {}, set()

    def line(rank, peer):
        return queues.setdefault((rank, peer if queue == "pair" else None), deque())

    def may_go_on(rank, step):
        if blocking and any(queued for (owner, _), queued in queues.items() if owner == rank):
            return False
        need = needs(step, ranks, stages) if step.peer is None else None
        return need is None or (rank, "receive", need.message) in through

    moved = True
    while moved:
        moved = False
        for rank, mine in enumerate(lists):
            while at[rank] < len(mine) and may_go_on(rank, mine[at[rank]]):
                step = mine[at[rank]]
                if step.peer is not None:
                    line(rank, step.peer).append(step)
                at[rank], moved = at[rank] + 1, True
        for rank, peer in itertools.permutations(range(ranks), 2):
            ours, theirs = line(rank, peer), line(peer, rank)
            while ours and theirs and (ours[0].name, ours[0].peer, theirs[0].name, theirs[0].peer) == (
                "send", peer, "receive", rank):
                sent, received = ours.popleft(), theirs.popleft()
                assert sent.message == received.message, f"rank {peer} takes {sent} for {received}"
                through.add((peer, "receive", received.message))
                moved = True
    return all(i == len(mine) for i, mine in zip(at, lists, strict=True)) and not any(queues.values())


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("queue", ["pair", "rank"])
def test_no_schedule_waits_for_ever(queue, blocking):
    for schedule in ALL:
        sizes = {"ranks": schedule.ranks, "stages": schedule.stages}
        assert is_carried_out(schedule.instructions, **sizes, queue=queue, blocking=blocking), schedule


def as_needed(schedule):
    """Each message where its own rank needs or has it, whatever the others do: what does not work."""
    ends = schedule.ranks, schedule.stages
    return [[message for step in order for message in (needs(step, *ends), step, makes(step, *ends)) if message]
            for order in schedule.orders]


@pytest.mark.parametrize(("name", "chunks", "works"),
                         [("GPipe", 1, True), ("1F1B", 1, False), ("zero-bubble", 1, False), ("interleaved", 2, False)])
def test_messages_where_each_rank_needs_them_wait_for_ever(name, chunks, works):
    schedule = make(name, ranks=4, micro_batches=8, chunks=chunks)
    sizes = {"ranks": 4, "stages": schedule.stages, "queue": "pair", "blocking": False}
    assert is_carried_out(as_needed(schedule), **sizes) == works
    assert is_carried_out(schedule.instructions, **sizes)


def test_a_pair_names_its_messages_in_one_order():
    for schedule in ALL:
        for one, other in itertools.combinations(range(schedule.ranks), 2):
            theirs = [[s.message for s in schedule[a] if s.peer == b] for a, b in ((one, other), (other, one))]
            assert theirs[0] == theirs[1], schedule


def test_a_receive_stands_no_earlier_than_it_must():
    """Before what needs it, or before a send that comes after it in the common order."""
    for schedule in ALL:
        for mine in schedule.instructions:
            for step, after in itertools.pairwise(mine):
                if step.name == "receive" and after.peer is None:
                    assert needs(after, schedule.ranks, schedule.stages) == step, schedule


def test_what_waits_for_ever_has_all_its_messages_too():
    stuck = parse(["F0 B0 F1 B1", "F0 F1 B0 B1"], 2)
    assert [sum(step.peer is not None for step in mine) for mine in stuck.instructions] == [4, 4]
    assert not is_carried_out(stuck.instructions, ranks=2, stages=2, queue="pair", blocking=False)
