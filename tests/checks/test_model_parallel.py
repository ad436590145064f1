"""The exercises on model parallelism: published solutions pass, plausible wrong answers fail in words."""

import itertools

import numpy as np
import pytest

from course_utils import check, launch
from course_utils.lessons.model_parallel import stream, there_and_back


@pytest.mark.parametrize(("name", "words"), [("idle_shares", "three real ranks measured"), ("balance", "20 ms")])
def test_solutions(name, words):
    exercise = getattr(check, name)
    verdict = exercise(exercise.published)
    assert verdict, str(verdict)
    assert words in verdict.text


def one_of_all(forward, backward):
    return [1 - 1 / len(forward)] * len(forward)


def forward_only(forward, backward):
    return [1 - f / sum(forward) for f in forward]


def busy(forward, backward):
    return [(f + b) / (sum(forward) + sum(backward)) for f, b in zip(forward, backward, strict=True)]


@pytest.mark.parametrize(("answer", "call"), [(one_of_all, "idle_shares([3.0, 1.0, 2.0], [6.0, 2.0, 2.0])"),
                                              (forward_only, "idle_shares([3.0, 1.0, 2.0], [6.0, 2.0, 2.0])"),
                                              (busy, "idle_shares([1.0, 1.0, 1.0, 1.0]")])  # fmt: skip
def test_idle_shares_wrong(answer, call):
    verdict = check.idle_shares(answer)
    assert verdict.state == "wrong"
    assert verdict.text.startswith(call)
    assert verdict.expected
    assert verdict.got


def equal_counts(costs, stages):
    return [len(costs) // stages] * (stages - 1) + [len(costs) - len(costs) // stages * (stages - 1)]


def until_full(costs, stages):
    """Fill each stage up to the average."""
    counts, room = [], 0
    for i, cost in enumerate(costs):
        if not counts or (room + cost > sum(costs) / stages and len(counts) < stages):
            counts.append(0)
            room = 0
        counts[-1] += 1
        room += cost
        if len(costs) - i - 1 == stages - len(counts):
            return counts + [1] * (stages - len(counts))
    return counts


def smallest_spread(costs, stages):
    """The least difference between the slowest and the fastest stage: balanced, and slower than need be."""
    ways = [(0, *cuts, len(costs)) for cuts in itertools.combinations(range(1, len(costs)), stages - 1)]
    stages_of = {way: [sum(costs[a:b]) for a, b in itertools.pairwise(way)] for way in ways}
    best = min(ways, key=lambda way: max(stages_of[way]) - min(stages_of[way]))
    return [b - a for a, b in itertools.pairwise(best)]


def costs_themselves(costs, stages):
    return costs[:stages]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (equal_counts, "balance([8, 1, 1, 1, 1, 1, 1, 2], 4) = [2, 2, 2, 2]: a slowest stage of 8 can be had"),
        (until_full, "can be had, this one has"),
        (smallest_spread, "can be had, this one has"),
        (lambda costs, stages: [1.5] * stages, "how many layers a stage takes is a whole number"),
        (costs_themselves, "each of the 4 stages takes at least one layer, and together they take all 8"),
    ],
)
def test_balance_wrong(answer, words):
    verdict = check.balance(answer)
    assert verdict.state == "wrong"
    assert words in verdict.text, str(verdict)
    assert verdict.expected
    assert verdict.got


def test_balance_may_use_up_its_argument_and_count_with_numpy():
    def balance(costs, stages):
        counts = check.balance.published(costs, stages)
        costs.clear()
        return list(np.array(counts))

    verdict = check.balance(balance)
    assert verdict, str(verdict)
    assert "every 2" in verdict.text


def test_idle_shares_may_use_up_its_arguments():
    def idle_shares(forward, backward):
        own = []
        while forward:
            own.append(forward.pop(0) + backward.pop(0))
        return [1 - each / sum(own) for each in own]

    verdict = check.idle_shares(idle_shares)
    assert verdict, str(verdict)


def test_answers_that_raise():
    def balance(costs, stages):
        return [costs[i] for i in range(99)]

    verdict = check.balance(balance)
    assert "IndexError" in verdict.text
    assert verdict.line.endswith("return [costs[i] for i in range(99)]")
    assert "course_utils" not in str(verdict)


def test_stubs():
    def balance(costs, stages):
        ...

    def idle_shares(forward, backward):
        return ...

    assert check.balance(balance).state == "not yet"
    assert check.idle_shares(idle_shares).state == "not yet"


def test_the_slowest_stage_sets_the_pace():
    run = launch(stream, [0.02, 0.06, 0.02], 5, ranks=3, time_limit=30)
    for rank in range(3):  # each batch as it was sent: none was changed on its way
        spans = [s.name for s in run.timeline.spans if s.rank == rank and s.role == "forward"]
        assert spans == [f"forward {number}" for number in range(5)]
    for rank, seconds in enumerate((0.1, 0.3, 0.1)):
        assert run.timeline.busy(rank) == pytest.approx(seconds, rel=0.3)
    ends = [s.end for s in run.timeline.spans if s.rank == 2 and s.role == "forward"]
    assert (ends[-1] - ends[0]) / 4 == pytest.approx(0.06, rel=0.3)


def test_one_batch_at_a_time_leaves_all_but_one_rank_idle():
    run = launch(there_and_back, [0.03] * 4, [0.06] * 4, 2, ranks=4, time_limit=30)
    assert sum(map(run.timeline.idle, range(4))) / 4 == pytest.approx(0.75, abs=0.05)
