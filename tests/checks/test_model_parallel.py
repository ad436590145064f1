"""The exercises on model parallelism: published solutions pass, plausible wrong answers fail in words."""

import functools
import itertools

import numpy as np
import pytest
import torch

from course_utils import check, launch
from course_utils.checks.model_parallel import one_at_a_time, stream
from tests.checks.judging import judge, solved


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


def backward_only(forward, backward):
    return [1 - b / sum(backward) for b in backward]


def shares_of_each_pass(forward, backward):
    """The mean of two shares is the share of the sum only where the passes last equally long."""
    return [1 - (f / sum(forward) + b / sum(backward)) / 2 for f, b in zip(forward, backward, strict=True)]


def against_the_slowest(forward, backward):
    own = [f + b for f, b in zip(forward, backward, strict=True)]
    return [1 - each / max(own) for each in own]


def in_percent(forward, backward):
    return [100 * share for share in check.idle_shares.published(forward, backward)]


def seconds_idle(forward, backward):
    return [sum(forward) + sum(backward) - f - b for f, b in zip(forward, backward, strict=True)]


def backward_is_twice_forward(forward, backward):
    return [1 - f / sum(forward) for f in forward]


def the_mean(forward, backward):
    return 1 - 1 / len(forward)


def one_rank_short(forward, backward):
    return check.idle_shares.published(forward, backward)[:-1]


UNEVEN = "idle_shares([3.0, 1.0, 2.0], [6.0, 2.0, 2.0])"


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        (one_of_all, UNEVEN),
        (forward_only, UNEVEN),
        (backward_only, UNEVEN),
        (shares_of_each_pass, UNEVEN),
        (backward_is_twice_forward, UNEVEN),
        (busy, "idle_shares([1.0, 1.0, 1.0, 1.0]"),
        (against_the_slowest, "idle_shares([1.0, 1.0], [2.0, 2.0])"),
        (in_percent, "idle_shares([1.0, 1.0], [2.0, 2.0])"),
        (seconds_idle, "idle_shares([1.0, 1.0], [2.0, 2.0])"),
        (the_mean, "idle_shares([1.0, 1.0], [2.0, 2.0])"),
        (one_rank_short, "idle_shares([1.0, 1.0], [2.0, 2.0])"),
    ],
)
def test_idle_shares_wrong(answer, call):
    verdict = check.idle_shares(answer)
    assert verdict.state == "wrong"
    assert verdict.text.startswith(call)
    assert verdict.expected
    assert verdict.got


def others_over_all(forward, backward):
    total = sum(forward) + sum(backward)
    return [(total - f - b) / total for f, b in zip(forward, backward, strict=True)]


def with_numpy(forward, backward):
    own = np.add(forward, backward)
    return list(1 - own / own.sum())


def with_torch(forward, backward):
    own = torch.tensor(forward) + torch.tensor(backward)
    return (1 - own / own.sum()).tolist()


def in_a_loop(forward, backward):
    shares, total = [], 0.0
    for i in range(len(forward)):
        total += forward[i] + backward[i]
    for i in range(len(forward)):
        shares.append(1 - (forward[i] + backward[i]) / total)
    return tuple(shares)


@pytest.mark.parametrize("answer", [others_over_all, with_numpy, with_torch, in_a_loop])
def test_idle_shares_right_in_other_ways(answer):
    solved("idle_shares", answer)


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


def largest_alone(costs, stages):
    """The most expensive layers each get a stage of their own."""
    cuts = sorted(sorted(range(1, len(costs)), key=lambda i: -costs[i])[: stages - 1])
    return [b - a for a, b in itertools.pairwise([0, *cuts, len(costs)])]


def halves(costs, stages):
    """Cut the most expensive stage where its halves differ least, again and again: greedy."""
    edges = [0, len(costs)]
    while len(edges) <= stages:
        runs = [(a, b) for a, b in itertools.pairwise(edges) if b - a > 1]
        a, b = max(runs, key=lambda run: sum(costs[slice(*run)]))
        edges.append(min(range(a + 1, b), key=lambda i: abs(sum(costs[a:i]) - sum(costs[i:b]))))
        edges.sort()
    return [b - a for a, b in itertools.pairwise(edges)]


def costs_of_the_stages(costs, stages):
    from course_utils.checks.model_parallel import stage_costs

    return stage_costs(costs, check.balance.published(costs, stages))


def places_to_cut(costs, stages):
    return list(itertools.accumulate(check.balance.published(costs, stages)))


def an_empty_stage(costs, stages):
    return [0, *[1] * (stages - 2), len(costs) - stages + 2] if stages > 1 else [len(costs)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (equal_counts, "balance([8, 1, 1, 1, 1, 1, 1, 2], 4) = [2, 2, 2, 2]: a slowest stage of 8 can be had"),
        (until_full, "can be had, this one has"),
        (smallest_spread, "can be had, this one has"),
        (lambda costs, stages: [1.5] * stages, "how many layers a stage takes is a whole number"),
        (largest_alone, "can be had, this one has"),
        (halves, "can be had, this one has"),
        (costs_of_the_stages, "takes at least one layer, and together they take all 8"),
        (places_to_cut, "takes at least one layer, and together they take all 8"),
        (an_empty_stage, "each of the 4 stages takes at least one layer"),
        (costs_themselves, "each of the 4 stages takes at least one layer, and together they take all 8"),
    ],
)
def test_balance_wrong(answer, words):
    verdict = judge("balance", answer, words)
    assert verdict.expected
    assert verdict.got


def by_bisection(costs, stages):
    """The least limit under which filling each stage needs no more of them than there are."""

    def filled(limit):
        counts, room = [0], 0
        for i, cost in enumerate(costs):
            left, open_stages = len(costs) - i, stages - len(counts)
            if counts[-1] and (room + cost > limit or left <= open_stages):
                counts.append(0)
                room = 0
            counts[-1] += 1
            room += cost
        return counts

    return next(counts for limit in range(max(costs), sum(costs) + 1) if len(counts := filled(limit)) == stages)


def by_recursion(costs, stages):
    @functools.cache
    def best(start, stages):
        if stages == 1:
            return sum(costs[start:]), [len(costs) - start]
        ways = []
        for end in range(start + 1, len(costs) - stages + 2):
            rest, counts = best(end, stages - 1)
            ways.append((max(sum(costs[start:end]), rest), [end - start, *counts]))
        return min(ways)

    return best(0, stages)[1]


def by_all_counts(costs, stages):
    ways = [way for way in itertools.product(range(1, len(costs) + 1), repeat=stages) if sum(way) == len(costs)]

    def slowest(way):
        layers = iter(costs)
        return max(sum(itertools.islice(layers, n)) for n in way)

    return min(ways, key=slowest)


def in_a_tensor_of_numbers(costs, stages):
    return [*torch.tensor(check.balance.published(costs, stages))]


@pytest.mark.parametrize("answer", [by_bisection, by_recursion, by_all_counts, in_a_tensor_of_numbers])
def test_balance_right_in_other_ways(answer):
    solved("balance", answer)


def test_balance_may_use_up_its_argument_and_count_with_numpy():
    def balance(costs, stages):
        counts = check.balance.published(costs, stages)
        costs.clear()
        return list(np.array(counts))

    verdict = check.balance(balance)
    assert verdict, str(verdict)
    assert " ms" in verdict.text  # as slow as this machine is now


def test_idle_shares_may_use_up_its_arguments():
    def idle_shares(forward, backward):
        own = []
        while forward:
            own.append(forward.pop(0) + backward.pop(0))
        return [1 - each / sum(own) for each in own]

    solved("idle_shares", idle_shares)


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
    for rank, seconds in enumerate((0.1, 0.3, 0.1)):
        assert run.timeline.busy(rank) >= seconds - 1e-3
    ends = [s.end for s in run.timeline.spans if s.rank == 2 and s.role == "forward"]
    assert ends[-1] - ends[0] >= 4 * 0.06 - 1e-3


def test_one_batch_at_a_time_leaves_all_but_one_rank_idle():
    run = launch(one_at_a_time, [0.03] * 4, [0.06] * 4, 2, ranks=4, time_limit=30)
    work = sorted((s for s in run.timeline.spans if s.role in ("forward", "backward")), key=lambda s: s.start)
    assert [s.rank for s in work] == [0, 1, 2, 3, 3, 2, 1, 0] * 2
    assert all(before.end <= after.start for before, after in itertools.pairwise(work))
