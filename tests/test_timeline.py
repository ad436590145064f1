import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils import Span, Timeline
from tests.tables import rows

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


LANES = ("compute", "communication")
ANY = st.builds(
    lambda rank, name, lane, start, seconds: Span(rank, name, start, start + seconds, lane),
    *(st.integers(0, 1), st.sampled_from(["forward", "idle"]), st.sampled_from(LANES)),
    *(st.integers(0, 4), st.integers(1, 5)),
)


@given(st.lists(ANY, min_size=3))
def test_what_a_rank_is_busy_with_counts_once_however_spans_overlap(spans):
    timeline = Timeline(spans)
    busy = {(s.lane, s.rank, t) for s in spans if s.name != "idle" for t in range(s.start, s.end)}
    compute, communication = ({(r, t) for at, r, t in busy if at == lane} for lane in LANES)
    for rank in timeline.ranks:
        assert timeline.busy(rank) == sum(here == rank for here, _ in compute)
    assert timeline.overlap() == len(compute & communication)
    whole = len(timeline.ranks) * timeline.seconds
    assert timeline.idle() == pytest.approx(1 - len(compute) / whole)


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


FLAT = """
rank  name        start  end
0     forward     0      1
1     forward     0      5
0     all-gather  1      2
0     forward     2      3
0     send        2      6
0     all-gather  3      4
0     forward     4      5
"""


def test_flat_cuts_inner_work_out_of_what_is_around_it():
    inner = [
        Span(0, "all-gather", 1, 2),
        Span(0, "all-gather", 3, 4),
        Span(0, "send", 2, 6, "communication"),
    ]
    flat = Timeline([Span(0, "forward", 0, 5), *inner, Span(1, "forward", 0, 5)], title="t").flat()
    found = [[str(s.rank), s.name, str(s.start), str(s.end)] for s in flat.spans]
    assert found == rows(FLAT)
    assert (flat.title, Timeline(flat.spans).flat().spans) == ("t", flat.spans)


def test_flat_takes_a_span_around_very_many():
    calls = [Span(0, "a", i, i + 1) for i in range(20_000)]
    assert len(Timeline([*calls, Span(0, "step", 0, 20_001)]).flat().spans) == 20_001
