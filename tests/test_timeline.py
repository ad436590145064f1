import itertools

import pytest

from course_utils import Span, Timeline

TWO = Timeline(
    [
        Span(1, "forward", 0.0, 4.0),
        Span(0, "backward", 2.0, 6.0),
        Span(0, "forward", 0.0, 2.0),
        Span(0, "all-reduce 0", 3.0, 5.0, "communication"),
        Span(0, "all-reduce 1", 5.5, 8.0, "communication"),
        Span(1, "all-reduce 0", 4.0, 5.0, "communication"),
    ],
    title="t",
)


def test_spans_are_sorted_and_measured():
    assert [s.start for s in TWO.spans] == [0.0, 0.0, 2.0, 3.0, 4.0, 5.5]
    assert (TWO.ranks, TWO.start, TWO.end, TWO.seconds) == ((0, 1), 0.0, 8.0, 8.0)
    assert repr(TWO) == "Timeline(6 spans of ranks [0, 1], 8 s)"


def test_overlap_is_the_time_in_which_both_lanes_work_and_counts_once():
    # 3..5 and 5.5..6 of rank 0; on rank 1 one begins after the other
    assert TWO.overlap() == pytest.approx(2.0 + 0.5)
    spans = [Span(0, "a", 0, 4), Span(0, "b", 1, 3), Span(0, "c", 3, 6)]
    talk = [Span(0, "send", 2, 5, "communication"), Span(0, "recv", 2.5, 7, "communication")]
    timeline = Timeline(spans + talk)
    assert (timeline.busy(0), timeline.busy(0, "communication"), timeline.overlap()) == (6, 5, 4)


def test_idle_is_a_share_and_idle_spans_are_not_work():
    timeline = Timeline(
        [Span(0, "forward", 0, 1), Span(0, "idle", 1, 3), Span(0, "backward", 3, 4)]
    )
    assert (timeline.busy(0), timeline.idle()) == (2, 0.5)
    assert TWO.idle() == 0.375


def test_last_begins_where_the_first_rank_begins_its_last_one():
    spans = []
    for step, rank in itertools.product(range(3), (0, 1)):
        start = step + 0.1 * rank
        spans.append(Span(rank, "forward", start, start + 0.4))
        spans.append(Span(rank, "backward", start + 0.5, start + 0.9))
    timeline = Timeline(spans, title="t")
    last = timeline.last("forward")
    assert (last.start, len(last.spans), last.title) == (2.0, 4, "t")
    assert timeline.last("backward").start == 2.5
    assert (timeline.titled("other").title, timeline.title) == ("other", "t")


def test_an_empty_timeline_answers():
    empty = Timeline([])
    assert (empty.seconds, empty.ranks, empty.overlap(), empty.idle()) == (0.0, (), 0, 0.0)
    assert empty._repr_png_()[1]["alt"].endswith("No spans were recorded.")


def test_flat_cuts_inner_work_out_of_what_is_around_it():
    inner = [
        Span(0, "all-gather", 1, 2),
        Span(0, "all-gather", 3, 4),
        Span(0, "send", 2, 6, "communication"),
    ]
    flat = Timeline([Span(0, "forward", 0, 5), *inner, Span(1, "forward", 0, 5)], title="t").flat()
    assert [(s.rank, s.name, s.start, s.end) for s in flat.spans] == [
        (0, "forward", 0, 1),
        (1, "forward", 0, 5),
        (0, "all-gather", 1, 2),
        (0, "forward", 2, 3),
        (0, "send", 2, 6),
        (0, "all-gather", 3, 4),
        (0, "forward", 4, 5),
    ]
    calls = [Span(0, "a", i, i + 1) for i in range(20_000)]
    assert len(Timeline([*calls, Span(0, "step", 0, 20_001)]).flat().spans) == 20_001
    assert (flat.title, Timeline(flat.spans).flat().spans) == ("t", flat.spans)
