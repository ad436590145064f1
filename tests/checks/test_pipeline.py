"""The exercises on pipelines: published solutions pass, plausible wrong answers fail in words."""

import itertools

import numpy as np
import pytest

from course_utils import check, schedules
from tests.checks.judging import judge, solved


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
        (lambda rank, ranks, micro_batches: check.write_1f1b.published(rank, 4, 8), "2 of part 0 is not this rank's"),
        (lambda rank, ranks, micro_batches: check.write_1f1b.published(ranks - 1 - rank, ranks, micro_batches),
         "never ends"),
        (lambda rank, ranks, micro_batches: check.write_zero_bubble.published(rank, ranks, micro_batches),
         "write F and B only: there is a W"),
    ],
)
def test_write_1f1b_wrong(answer, says):
    judge("write_1f1b", answer, says)


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


def test_write_1f1b_for_some_ranks_only():
    verdict = check.write_1f1b(lambda rank, ranks, m: check.write_1f1b.published(rank, ranks, m) if rank == 0 else None)
    assert "write_1f1b(1, 2, 3)" in verdict.text


def as_states(rank, ranks, micro_batches):  # a rank that looks at what it holds
    done, order = {"F": 0, "B": 0}, []
    while done["B"] < micro_batches:
        what = "F" if done["F"] < micro_batches and done["F"] - done["B"] < ranks - rank else "B"
        order.append(f"{what}{done[what]}")
        done[what] += 1
    return " ".join(order)


def as_lines(rank, ranks, micro_batches):
    ahead = min(micro_batches, ranks - rank)
    forwards, backwards = ([f"{what}{m}" for m in range(micro_batches)] for what in "FB")
    pairs = itertools.zip_longest(backwards, forwards[ahead:], fillvalue="")
    return "\n".join(forwards[:ahead] + [word for pair in pairs for word in pair if word])


def from_the_course(rank, ranks, micro_batches):
    return " ".join(s.letter + str(s.micro) for s in schedules.one_f_one_b(rank, ranks, micro_batches))


@pytest.mark.parametrize("answer", [as_states, as_lines, from_the_course, lambda *a: np.str_(as_states(*a))])
def test_write_1f1b_in_other_ways(answer):
    def write_1f1b(rank, ranks, micro_batches):
        return answer(rank, ranks, micro_batches)

    solved("write_1f1b", write_1f1b)


def test_write_zero_bubble_solution():
    solved("write_zero_bubble", check.write_zero_bubble.published)


def by_what_is_held(rank, ranks, micro_batches):  # W only when there is no room for another F
    done, order = {"F": 0, "B": 0, "W": 0}, []
    while done["W"] < micro_batches:
        if done["F"] < micro_batches and done["F"] - done["B"] < ranks - rank and done["F"] - done["W"] < ranks:
            what = "F"
        elif done["B"] < done["F"] and (done["F"] - done["B"] == ranks - rank or done["F"] == micro_batches):
            what = "B" if done["B"] - done["W"] <= rank else "W"
        else:
            what = "W"
        order.append(f"{what}{done[what]}")
        done[what] += 1
    return " ".join(order)


def late_into_1f1b(rank, ranks, micro_batches):
    words = []
    for word in check.write_1f1b.published(rank, ranks, micro_batches).split():
        words.append(word)
        if word[0] == "B" and int(word[1:]) >= rank:
            words.append(f"W{int(word[1:]) - rank}")
    return " ".join(words + [f"W{m}" for m in range(max(0, micro_batches - rank), micro_batches)])


def the_last_weights_backwards(rank, ranks, micro_batches):
    words = late_into_1f1b(rank, ranks, micro_batches).split()
    tail = list(itertools.takewhile(lambda word: word[0] == "W", reversed(words)))
    return " ".join(words[: len(words) - len(tail)] + tail)


def course_zero_bubble(rank, ranks, micro_batches):
    return "  ".join(f"{s.letter}{s.micro}" for s in schedules.zero_bubble(rank, ranks, micro_batches))


@pytest.mark.parametrize("answer", [by_what_is_held, late_into_1f1b, the_last_weights_backwards, course_zero_bubble,
                                    lambda *a: np.str_(late_into_1f1b(*a))])
def test_write_zero_bubble_in_other_ways(answer):
    def write_zero_bubble(rank, ranks, micro_batches):
        return answer(rank, ranks, micro_batches)

    solved("write_zero_bubble", write_zero_bubble)


def at_once(rank, ranks, micro_batches):  # every W right after its B
    words = check.write_1f1b.published(rank, ranks, micro_batches).split()
    return " ".join(f"{word} W{word[1:]}" if word[0] == "B" else word for word in words)


def at_the_end(rank, ranks, micro_batches):
    weights = " ".join(f"W{m}" for m in range(micro_batches))
    return f"{check.write_1f1b.published(rank, ranks, micro_batches)} {weights}"


def all_late_alike(rank, ranks, micro_batches):
    words = []
    for word in check.write_1f1b.published(rank, ranks, micro_batches).split():
        words += [word] + ([f"W{int(word[1:]) - 1}"] if word[0] == "B" and int(word[1:]) >= 1 else [])
    return " ".join([*words, f"W{micro_batches - 1}"])


def late_the_other_way(rank, ranks, micro_batches):  # the first ranks late, not the last ones
    words = []
    late = ranks - 1 - rank
    for word in check.write_1f1b.published(rank, ranks, micro_batches).split():
        words += [word] + ([f"W{int(word[1:]) - late}"] if word[0] == "B" and int(word[1:]) >= late else [])
    return " ".join(words + [f"W{m}" for m in range(max(0, micro_batches - late), micro_batches)])


def gpipe_in_halves(rank, ranks, micro_batches):
    return " ".join(f"{name}{m}" for name in "FBW" for m in range(micro_batches))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (at_once, "2 ranks: the memory is right, but ranks wait too long"),
        (at_the_end, "holds too many"),
        (all_late_alike, "holds too many"),
        (late_the_other_way, "holds too many"),
        (gpipe_in_halves, "holds too many"),
        (check.write_1f1b.published, "there is no W"),
        (lambda rank, ranks, m: check.write_zero_bubble.published(rank, ranks, m)[:-3], "backward-weight 1 is missing"),
        (lambda rank, ranks, m: at_once(rank, ranks, m).replace("B0 W0", "W0 B0"), "stands before its backward-input"),
        (lambda rank, ranks, m: " ".join(f"F{i} B{i} W{i}" for i in range(m)), "wait too long"),
        (lambda rank, ranks, m: late_into_1f1b(ranks - 1 - rank, ranks, m), "never ends"),
        (lambda rank, ranks, m: late_into_1f1b(rank, ranks, m).split(), "in one text"),
        (lambda rank, ranks, m: late_into_1f1b(rank, ranks, m).lower(), "write F and B"),
    ],
)
def test_write_zero_bubble_wrong(answer, says):
    def write_zero_bubble(rank, ranks, micro_batches):
        return answer(rank, ranks, micro_batches)

    judge("write_zero_bubble", write_zero_bubble, says)


def test_write_zero_bubble_empty():
    assert check.write_zero_bubble(lambda rank, ranks, micro_batches: None).state == "not yet"
