import math
from fractions import Fraction

import pytest

from course_utils import CourseError, pictures
from course_utils.theory.collectives import sent, steps

RANKS = range(2, 9)


@pytest.mark.parametrize("p", RANKS)
def test_broadcast_ends_with_the_message_everywhere(p):
    frames = steps("broadcast", p)
    assert frames[-1].held == (({0},),) * p
    assert len(frames) - 1 == math.ceil(math.log2(p))


@pytest.mark.parametrize("p", RANKS)
def test_all_gather_ends_with_every_chunk_everywhere(p):
    frames = steps("all-gather", p)
    assert frames[-1].held == (tuple({c} for c in range(p)),) * p
    assert len(frames) - 1 == p - 1
    assert sent(frames, 0) == Fraction(p - 1, p)


@pytest.mark.parametrize("p", RANKS)
def test_reduce_scatter_ends_with_one_whole_chunk_on_each_rank(p):
    frames = steps("reduce-scatter", p)
    everyone = set(range(p))
    assert frames[-1].held == tuple(tuple(everyone if c == r else set() for c in range(p)) for r in range(p))
    assert sent(frames, p - 1) == Fraction(p - 1, p)


@pytest.mark.parametrize("p", RANKS)
def test_all_reduce_is_bandwidth_optimal(p):
    frames = steps("all-reduce", p)
    assert frames[-1].held == ((set(range(p)),) * p,) * p
    assert len(frames) - 1 == 2 * (p - 1)
    assert {sent(frames, r) for r in range(p)} == {Fraction(2 * (p - 1), p)}


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", ["broadcast", "all-gather", "reduce-scatter", "all-reduce"])
def test_a_step_is_one_chunk_out_and_one_in_and_nobody_sends_what_it_has_not(name, p):
    before, *frames = steps(name, p)
    for frame in frames:
        assert len({s.src for s in frame.sends}) == len(frame.sends) == len({s.dst for s in frame.sends})
        for send in frame.sends:
            assert before.held[send.src][send.chunk]
            if "reduce" in name and not frame.text.startswith("All-gather"):
                assert not before.held[send.src][send.chunk] & before.held[send.dst][send.chunk], "added twice"
        before = frame


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", ["broadcast", "all-gather", "reduce-scatter", "all-reduce"])
def test_show_draws_every_step_in_the_pages_own_colour(name, p):
    html = pictures.collective(name, p)._repr_html_()
    assert html.count("svg xmlns") >= len(steps(name, p))
    assert "currentColor" in html
    assert len(html) < 200_000
    assert f"{name} on {p} ranks" in html


def test_wrong_names_and_ranks_in_words():
    with pytest.raises(CourseError, match=r"no 'allreduce'\. Did you mean 'all-reduce'"):
        steps("allreduce", 4)
    with pytest.raises(CourseError, match="It can be 'broadcast', 'all-gather'"):
        pictures.collective(None)
    for ranks in (0, 1, 9, -1, 2.0, "4", True, None):
        with pytest.raises(CourseError, match="whole number from 2 to 8"):
            steps("all-reduce", ranks)
