"""Curves: what is drawn of a series, between which round numbers, and that SVG and PNG of anything can be read."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from io import BytesIO

import pytest

from course_utils import pictures
from course_utils.pictures.curves import POINTS, Axis, draw, pieces
from course_utils.style import number

NAN, INF = math.nan, math.inf


def curves(ranks=2, n=50):
    return {"loss": {r: ([*range(n)], [1 / (i + 1 + r) for i in range(n)]) for r in range(ranks)}}


@pytest.mark.parametrize("ends", [(0, 1), (0.013, 2.31), (-3, 7), (0, 1e-7), (2.3012, 2.3026), (5, 5), (0, 0)])
def test_marks_are_round_cover_the_data_and_read_differently(ends):
    axis = Axis(ends, log=False)
    assert axis.low <= min(ends) <= max(ends) <= axis.high + 1e-12
    assert 2 <= len(axis.marks) <= 9
    assert f"{axis.marks[1] - axis.marks[0]:.0e}"[0] in "125"
    assert len(set(axis.texts)) == len(axis.marks)


@pytest.mark.parametrize("ends", [(1, 1000), (32, 1024), (5, 5), (1e-9, 1e12), (0.3, 0.4), (2, 1e30)])
def test_logarithmic_marks_cover_the_data(ends):
    axis = Axis(ends, log=True)
    assert axis.low <= ends[0] * 1.00001
    assert axis.high >= ends[1] * 0.99999
    assert 2 <= len(axis.marks) <= 9


def test_steps_are_whole_and_few_decades_are_divided():
    assert Axis([0, 2], log=False, whole=True, tight=True).marks == [0, 1, 2]
    assert Axis([32, 1024], log=True).marks == [20, 50, 100, 200, 500, 1000, 2000]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.03124, "0.0312"), (96.53, "96.5"), (999.6, "1,000"), (1437, "1,437"), (23456, "23.5k"),
     (1.2e6, "1.2M"), (3e9, "3G"), (4e13, "4e+13"), (1.5e-5, "1.5e-05"), (NAN, "nan"), (INF, "inf")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_of_many_points_ends_and_spikes_are_drawn():
    n = 100_000
    ys = [0.0] * n
    ys[77_777], ys[3] = 9.0, -9.0
    (line,) = pieces(range(n), ys)
    assert len(line) <= POINTS
    assert (line[0][0], line[-1][0]) == (0, n - 1)
    assert {(77_777, 9.0), (3, -9.0)} <= {*line}


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_gap_is_seen_among_thousands(bad):
    ys = [float(i % 7) for i in range(5000)]
    ys[2500] = bad
    assert len(pieces(range(5000), ys)) == 2


def test_lines_break_at_gaps_and_where_x_goes_back():
    assert pieces([0, 1, 2, 3, 0], [1.0, NAN, 1.0, 2.0, 5.0]) == [[(0, 1.0)], [(2, 1.0), (3, 2.0)], [(0, 5.0)]]
    assert pieces([1, 2], [0.0, 3.0], log_y=True) == [[(2, 3.0)]]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "series",
    [{}, {0: ([], [])}, {0: ([3], [0.5])}, {0: ([0, 1], [NAN, INF])}, {0: ([0, 1, 2], [1.0, NAN, 2.0])},
     {0: ([0, 1], [1e300, -1e300])}, {0: ([5, 5], [1.0, 1.0])}, {"a <b>": ([1], [1.0])}],
)
def test_odd_series_still_draw(series, log):
    svg = draw({"m <&>": series}, log_x=log, log_y=log).svg('say "x"')
    assert ET.fromstring(svg).get("aria-label") == 'say "x"'
    assert not re.search(r'="[^"]*\b(nan|inf)\b', svg)
    png = pictures.curves_png({"m": series}, alt="x", title="costs $\\bad", log_x=log, log_y=log, foot="$x_$").png
    assert png.startswith(b"\x89PNG"), "a dollar begins no formula"


def test_last_values_stand_at_the_ends_of_lines_and_not_on_each_other():
    for ranks, written in ((3, ["0.02", "0.0196", "0.0192"]), (8, ["0.02", "0.0175"]), (1, ["0.02"])):
        drawing = draw(curves(ranks))
        ends = [(y, text) for x, y, text, _, bold in drawing.texts if bold and text in written]
        assert sorted(text for _, text in ends) == sorted(written)
        assert all(abs(a[0] - b[0]) >= 12 for a, b in itertools.combinations(ends, 2))
    lost = draw({"loss": {0: ([0, 1], [1.0, NAN]), 1: ([0, 1], [1.0, 2.0])}})
    assert "nan" in [text for *_, text, _, _ in lost.texts]


@pytest.mark.parametrize("names", [range(8), [f"a run with a name of many words {i}" for i in range(6)]])
def test_the_legend_stays_inside(names):
    drawing = draw({"loss": {name: ([0, 1], [0.0, 1.0]) for name in names}}, foot="A foot")
    for x, y, text, anchor, _ in drawing.texts:
        assert y < drawing.height
        assert anchor != "start" or x + 6.6 * len(text) <= drawing.width


def test_a_legend_only_where_there_are_several_series():
    assert "rank 0" not in draw(curves(1)).svg("x")
    assert all(f"core {r}" in draw(curves(8), unit="core").svg("x") for r in range(8))


def test_png_is_transparent_and_knows_its_width():
    from matplotlib.image import imread

    picture = pictures.curves_png(curves(4), alt="four", title="T", foot="step 50")
    data, meta = picture._repr_png_()
    image = imread(BytesIO(data))
    assert image.shape[1] == 2 * meta["width"]
    assert meta["alt"] == repr(picture) == "four"
    assert (image[..., 3] == 0).mean() > 0.7
