"""Curves: what is drawn of a series, between which round numbers, and that SVG and PNG of anything
can be read.
"""

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils import Span, Timeline, pictures
from course_utils.pictures import picture
from course_utils.pictures.curves import MOST, POINTS, axis, draw, pieces, spread

NAN, INF = math.nan, math.inf
DRAWN = st.floats(-MOST, MOST)
VALUES = st.floats() | st.sampled_from([10**400, -(10**400), MOST, -MOST, 1 / MOST, 5e-324])
NAMES = st.text(st.characters(exclude_categories=["C"]))
POINTS_OF_LINES = st.lists(st.tuples(VALUES, VALUES), min_size=1)
SERIES = st.just(([], [])) | POINTS_OF_LINES.map(lambda points: [*zip(*points, strict=True)])
PANELS = st.dictionaries(NAMES, st.dictionaries(NAMES | st.integers(0, 9), SERIES), max_size=3)


@given(st.tuples(DRAWN, DRAWN).map(sorted), st.booleans())
def test_marks_are_round_cover_the_data_and_read_differently(ends, log):
    if log:
        ends = [math.log10(max(abs(end), 1 / MOST)) for end in ends]
        ends.sort()
    found = axis(ends, log=log)
    assert -0.00001 <= found.at(ends[0]) <= found.at(ends[1]) <= 1.00001
    assert 2 <= len(found.marks) == len({*found.marks.values()}) <= 9
    if log:
        assert all(f"{10**mark:.0e}"[0] in "125" for mark in found.marks)
    else:
        first, second, *_ = found.marks
        assert f"{second - first:.0e}"[0] in "125"


def test_ends_between_marks_and_a_little_beyond_one_add_few():
    for ends in ([0.3, 14.2], [2.23, 4.71]):
        assert len(axis(ends, log=True).marks) <= 9
    assert len(axis([0.0, 14.00000002], log=True).marks) == 8


def test_steps_are_whole_and_few_decades_are_divided():
    assert [*axis([0, 2], tight=True).marks] == [0, 1, 2]
    marks = axis([math.log10(32), math.log10(1024)], log=True).marks
    assert [*marks.values()] == ["20", "50", "100", "200", "500", "1,000", "2,000"]
    first, *_ = axis([math.log10(20), 3], log=True).marks.values()
    assert first == "20", "however its logarithm is rounded"


def test_whole_values_get_whole_marks_and_a_panel_may_be_logarithmic():
    assert [*axis([2.0, 4.0]).marks] == [2, 3, 4]
    marks = [text for *_, text, _, _ in draw({"ms (log)": {0: ([0, 1], [1, 100])}}).texts]
    assert {"1", "10", "100"} <= {*marks}


def test_of_many_points_ends_spikes_and_gaps_are_drawn():
    n = 100_000
    ys = [0.0] * n
    ys[77_777], ys[3] = 9.0, -9.0
    (line,) = pieces(range(n), ys)
    assert len(line) <= POINTS
    assert (line[0][0], line[-1][0]) == (0, n - 1)
    assert {(77_777, 9.0), (3, -9.0)} <= {*line}
    for bad in (NAN, INF, -INF):
        ys[50_000] = bad
        assert len(pieces(range(n), ys)) == 2
    ys[77_776] = NAN  # beside the spike
    assert (77_777, 9.0) in itertools.chain(*pieces(range(n), ys))


def test_lines_break_at_gaps_and_where_x_goes_back():
    assert pieces([0, 1, 2, 3, 0], [1.0, NAN, 1.0, 2.0, 5.0]) == [
        [(0, 1.0)],
        [(2, 1.0), (3, 2.0)],
        [(0, 5.0)],
    ]
    assert pieces([1, 2, 3], [0.0, 100.0, 1e300], log_y=True) == [[(2, 2.0)]]


@given(PANELS, NAMES, VALUES, st.booleans(), st.booleans(), st.booleans())
def test_whatever_is_given_is_drawn_inside_the_picture(panels, text, total, log_x, log_y, named):
    panels["good"] = {0: ([0, 1, 2], [3.0, 2.0, 1.0])}
    total = None if log_x else total
    logs = {"log_x": log_x, "log_y": log_y}
    drawing = draw(panels, title=text, foot=text, total=total, named=named, **logs)
    points = [point for line, *_ in drawing.lines for point in line]
    points += [(x, y) for x, y, *_ in drawing.texts]
    assert all(0 <= x <= drawing.width for x, _ in points)
    assert all(0 <= y <= drawing.height for _, y in points)
    svg = drawing.svg(text)
    assert ET.fromstring(svg).get("aria-label") == text
    assert not re.search(r'="[^"]*\b(nan|inf)\b', drawing.svg("curves"))


def test_names_in_any_script_are_drawn_without_a_warning(recwarn):
    names = ("损失 ロス", "الخسارة 🔥", "$\\bad$ $x_$", "_a", "a\nb", "", "x" * 300)
    text = "".join(names)  # a dollar begins no formula
    lines = {name: ([0, 1], [0.0, i]) for i, name in enumerate(names)}
    picture = pictures.curves_png({text: lines, "other": {}}, alt="x", title=text, foot=text)
    assert picture.png.startswith(b"\x89PNG")
    assert picture._repr_png_()[1]["alt"] == f"{text}: x"
    timeline = Timeline([Span(0, name, i, i + 1, name) for i, name in enumerate(names)], title=text)
    assert pictures.gantt(timeline).png.startswith(b"\x89PNG")
    assert not recwarn.list


def test_a_font_that_is_installed_is_used_for_what_the_first_has_no_glyph_for(monkeypatch):
    drawing = draw({"\ufb00 \ue000": {}})  # of the private area, which STIX has letters in
    without = drawing.png()
    monkeypatch.setattr(picture, "FALLBACKS", ("no such font", "STIXNonUnicode"))
    assert drawing.png() != without


def test_last_values_stand_at_the_ends_of_lines_and_not_on_each_other():
    ends_of = {1: ["0.02"], 3: ["0.02", "0.0196", "0.0192"], 8: ["0.02", "0.0175"]}
    for ranks, written in ends_of.items():
        lines = {r: ([*range(50)], [1 / (i + 1 + r) for i in range(50)]) for r in range(ranks)}
        drawing = draw({"loss": lines})
        ends = [(y, text) for x, y, text, _, bold in drawing.texts if bold and text in written]
        assert sorted(text for _, text in ends) == sorted(written)
        assert all(abs(a[0] - b[0]) >= 12 for a, b in itertools.combinations(ends, 2))
    lost = draw({"loss": {0: ([0, 1], [1.0, NAN]), 1: ([0, 1], [1.0, 2.0])}})
    assert "nan" in [text for *_, text, _, _ in lost.texts]


def test_labels_are_spread_from_the_lowest_up_and_none_stands_above_the_panel():
    assert spread([90, 50, 20], top=10, apart=13) == [90, 50, 20], "far enough apart"
    assert spread([90, 88, 80], top=10, apart=13) == [90, 77, 64]
    assert spread([40, 12, 11, 10], top=10, apart=13) == [49, 36, 23, 10]


@pytest.mark.parametrize(
    "names", [[3], range(8), [f"a run with a name of many words {i}" for i in range(6)]]
)
def test_a_legend_where_there_are_several_series_stays_inside(names):
    lines = {name: ([0, 1], [0.0, 1.0]) for name in names}
    drawing = draw({"loss": lines}, foot="A foot", unit="core")
    assert ("core 3" in [text for *_, text, _, _ in drawing.texts]) == (names == range(8))
    for x, y, text, anchor, _ in drawing.texts:
        assert y < drawing.height
        assert anchor != "start" or x + 6.6 * len(text) <= drawing.width


def test_names_at_the_ends_replace_the_legend_and_phases_are_marked():
    lines = {f"way {i}": ([1, 9], [i, i + 1.0]) for i in range(6)}
    drawing = draw({"loss": lines}, named=True, phases={"forward": 1, "backward": 5})
    texts = [text for *_, text, _, _ in drawing.texts]
    assert all(texts.count(name) == 1 for name in [*lines, "forward", "backward"])
    (begins,) = {x for x, _, text, _, _ in drawing.texts if text == "backward"}
    assert any(x + 4 == begins and dash for [(x, _), *_], _, _, dash in drawing.lines)
