"""The exercises on pipelines: published solutions pass, plausible wrong answers fail in words."""

import itertools
import math

import numpy as np
import pytest

from course_utils import check
from course_utils.theory import schedules


def test_fewest_micro_batches_solution():
    assert check.fewest_micro_batches(check.fewest_micro_batches.published)


def one_too_few(ranks, bubble):
    return max(1, check.fewest_micro_batches.published(ranks, bubble) - 1)


def of_the_work(ranks, bubble):  # the bubble as a share of the work, not of the step
    m = 1
    while (ranks - 1) / m > bubble:
        m += 1
    return m


def rounded(ranks, bubble):  # to the nearest: sometimes one too few
    return max(1, round((ranks - 1) * (1 - bubble) / bubble))


def cut_off(ranks, bubble):
    return max(1, int((ranks - 1) * (1 - bubble) / bubble + 1e-9))


def below(ranks, bubble):  # not "at or below"
    m = 1
    while (ranks - 1) / (m + ranks - 1) >= bubble:
        m += 1
    return m


def none_at_all(ranks, bubble):
    return math.ceil((ranks - 1) * (1 - bubble) / bubble)


@pytest.mark.parametrize(("answer", "case", "expected", "got"), [
    (one_too_few, "(4, 0.5)", "3", "2"), (of_the_work, "(4, 0.5)", "3", "6"), (below, "(4, 0.5)", "3", "4"),
    (rounded, "(5, 0.3)", "10", "9"), (cut_off, "(5, 0.3)", "10", "9"), (none_at_all, "(1, 0.25)", "1", "0"),
])  # fmt: skip
def test_fewest_micro_batches_wrong(answer, case, expected, got):
    verdict = check.fewest_micro_batches(answer)
    assert verdict.text.startswith(f"fewest_micro_batches{case}")
    assert (verdict.expected, verdict.got) == (expected, got)


@pytest.mark.parametrize("answer", [
    lambda ranks, bubble: max(1, math.ceil((ranks - 1) * (1 - bubble) / bubble)),
    lambda ranks, bubble: max(1, math.ceil((ranks - 1) * (1 / bubble - 1))),
    lambda ranks, bubble: np.argmax((ranks - 1) / (np.arange(1, 999) + ranks - 1) <= bubble) + 1,
    lambda ranks, bubble: next(m for m in itertools.count(1) if schedules.bubble(ranks, m) <= bubble),
])  # fmt: skip
def test_fewest_micro_batches_in_other_ways(answer):
    assert check.fewest_micro_batches(answer)


def test_write_1f1b_solution():
    verdict = check.write_1f1b(check.write_1f1b.published)
    assert verdict, str(verdict)
    assert "4 real ranks" in verdict.text


def gpipe(rank, ranks, micro_batches):
    return " ".join(f"{name}{m}" for name in "FB" for m in range(micro_batches))


def naive(rank, ranks, micro_batches):
    return " ".join(f"F{m} B{m}" for m in range(micro_batches))


def one_ahead_too_few(rank, ranks, micro_batches):
    ahead = max(1, min(ranks - rank - 1, micro_batches))
    order = [f"F{m}" for m in range(ahead)]
    for m in range(micro_batches):
        order += [f"B{m}"] + ([f"F{m + ahead}"] if m + ahead < micro_batches else [])
    return " ".join(order)


def without_the_rest(rank, ranks, micro_batches):
    return check.write_1f1b.published(rank, ranks, micro_batches)[:-3]


def the_same_on_every_rank_but_the_last(rank, ranks, micro_batches):
    return gpipe(rank, ranks, micro_batches) if rank == ranks - 1 else naive(rank, ranks, micro_batches)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (gpipe, "1 rank: it works, but it holds too many"),
        (naive, "2 ranks: the memory is right, but ranks wait too long"),
        (one_ahead_too_few, "ranks wait too long"),
        (without_the_rest, "backward 1 is missing"),
        (the_same_on_every_rank_but_the_last, "holds too many"),
        (lambda rank, ranks, micro_batches: ["F0"], "write F and B"),
    ],
)
def test_write_1f1b_wrong(answer, says):
    verdict = check.write_1f1b(answer)
    assert verdict.state == "wrong"
    assert says in verdict.text


def test_write_1f1b_that_waits_for_ever():
    def write_1f1b(rank, ranks, micro_batches):
        if (ranks, rank) == (2, 1):
            return "F1 B1 F0 B0 F2 B2"
        return "F0 B0 F1 B1 F2 B2" if ranks == 2 else check.write_1f1b.published(rank, ranks, micro_batches)

    verdict = check.write_1f1b(write_1f1b)
    assert "never ends" in verdict.text
    assert "rank 0 waits for gradients 0 from rank 1; rank 1 waits for activations 1 from rank 0" in verdict.text


def test_write_1f1b_that_raises_or_is_empty():
    def write_1f1b(rank, ranks, micro_batches):
        return "F" + rank

    verdict = check.write_1f1b(write_1f1b)
    assert "TypeError" in verdict.text
    assert verdict.line.endswith('return "F" + rank')
    assert "course_utils" not in str(verdict)
    assert check.write_1f1b(lambda rank, ranks, micro_batches: None).state == "not yet"
