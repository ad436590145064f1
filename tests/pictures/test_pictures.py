import json
import re
import xml.etree.ElementTree as ET
from importlib import import_module
from itertools import pairwise

import pytest
from matplotlib.colors import to_hex

from course_utils import Span, Timeline, pictures, schedules
from course_utils.pictures.axes import decades, runs, spread, text_of, thin, tick_texts, ticks
from course_utils.style import ROLE, WIDTH

NAN, INF = float("nan"), float("inf")


def parsed(html: str) -> ET.Element:
    """The HTML as a tree: it must be well-formed, so that one picture cannot spill into the page."""
    html = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    html = re.sub(r" data-(stage|line|course-player)(?=[ >])", "", html)  # attributes without a value are HTML, not XML
    return ET.fromstring(f"<div>{html}</div>")


# -- axes


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.013, 2.31), (-3, 7), (0, 1e-7), (0.99991, 0.99999), (5, 5), (0, 0)]
)
def test_ticks_are_round_cover_the_data_and_read_differently(low, high):
    found = ticks(low, high)
    assert found[0] <= low <= high <= found[-1] + 1e-12
    assert 2 <= len(found) <= 9
    step = found[1] - found[0]
    assert f"{step:.0e}"[0] in "125"
    assert len(set(tick_texts(found))) == len(found)


def test_ticks_of_steps_are_whole():
    assert ticks(0, 2, whole=True) == [0, 1, 2]
    assert tick_texts([0, 5e3, 1e4]) == ["0", "5k", "10k"]


@pytest.mark.parametrize(
    ("low", "high"), [(1, 1000), (32, 1024), (5, 5), (1e-9, 1e12), (0.3, 0.4), (1, 10), (2, 1e30)]
)
def test_numbers_of_a_logarithmic_axis_cover_the_data_closely(low, high):
    found = decades(low, high)
    assert found[0] <= low * 1.00001
    assert found[-1] >= high * 0.99999
    assert 2 <= len(found) <= 8
    assert found == sorted(found)


def test_two_decades_get_1_2_and_5():
    assert decades(32, 1024) == [20, 50, 100, 200, 500, 1000, 2000]
    assert decades(1, 1e5) == [1, 10, 100, 1000, 1e4, 1e5]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.03124, "0.0312"), (96.53, "96.5"), (1437, "1,437"), (23456, "23.5k"), (1.2e6, "1.2M"), (3e9, "3G"),
     (4e13, "4e+13"), (1.5e-5, "1.5e-05"), (NAN, "nan"), (INF, "inf")],
)
def test_numbers_are_short(value, text):
    assert text_of(value) == text


def test_thinning_keeps_ends_and_spikes_and_never_exceeds_its_limit():
    n = 100_000
    ys = [0.0] * n
    ys[77_777], ys[3] = 9.0, -9.0
    kept = thin(range(n), ys, 240)
    assert len(kept) <= 240
    assert kept == sorted(kept)
    assert (kept[0][1], kept[-1][1]) == (0, n - 1)
    assert (77_777, 77_777, 9.0) in kept
    assert (3, 3, -9.0) in kept


def test_thinning_leaves_a_short_series_alone():
    assert thin([1, 2], [3.0, 4.0], 240) == [(0, 1, 3.0), (1, 2, 4.0)]
    assert thin([], [], 240) == []


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_thinning_keeps_what_is_not_finite_as_a_gap(bad):
    ys = [float(i % 7) for i in range(5000)]
    ys[2500] = bad
    kept = thin(range(5000), ys, 240)
    assert len(kept) <= 240
    assert any(y != y or y in (INF, -INF) for _, _, y in kept)
    assert len(runs(kept, False, False)) == 2


def test_lines_break_at_gaps_and_where_steps_go_back():
    points = [(0, 0, 1.0), (1, 1, NAN), (2, 2, 1.0), (3, 3, 2.0), (4, 0, 5.0)]
    assert runs(points, False, False) == [[(0, 1.0)], [(2, 1.0), (3, 2.0)], [(0, 5.0)]]
    assert runs([(0, 1, 0.0), (1, 2, 3.0)], False, True) == [[(2, 3.0)]]


@pytest.mark.parametrize("places", [[10, 10, 10], [150, 151, 152, 153], [0, 1, 159], []])
def test_labels_are_spread_inside_the_panel(places):
    found = spread(places, 13, 0, 160)
    assert len(found) == len(places)
    assert all(b - a >= 13 - 1e-9 for a, b in pairwise(found))
    assert all(-1e-9 <= p <= 160 for p in found)


# -- curves


def curves(ranks=2, n=50):
    return {"loss": {r: (list(range(n)), [1 / (i + 1 + r) for i in range(n)]) for r in range(ranks)}}


def test_curves_follow_the_theme_and_carry_their_text():
    picture = pictures.curves_svg(curves(), alt="loss of 2 ranks")
    tree = parsed(picture._repr_html_())
    svg = tree.find(".//{http://www.w3.org/2000/svg}svg")
    assert svg.get("fill") == "currentColor"
    assert svg.get("aria-label") == "loss of 2 ranks: loss"
    assert "white" not in picture.html.replace("white-space", "")
    assert repr(picture) == "loss of 2 ranks"


def test_a_legend_only_where_there_are_several_series():
    assert "rank 0" not in pictures.curves_svg(curves(1), alt="x").html
    assert all(f"rank {r}" in pictures.curves_svg(curves(8), alt="x").html for r in range(8))


@pytest.mark.parametrize(
    "series",
    [{}, {0: ([], [])}, {0: ([3], [0.5])}, {0: ([0, 1], [NAN, INF])}, {0: ([0, 1, 2], [1.0, NAN, 2.0])},
     {0: ([0, 1], [1e300, -1e300])}, {0: ([5, 5], [1.0, 1.0])}, {"a <b>": ([1], [1.0])}],
)
@pytest.mark.parametrize("log", [False, True])
def test_curves_of_odd_series_still_draw(series, log):
    picture = pictures.curves_svg({"m <&>": series}, alt='say "x"', log_x=log, log_y=log)
    parsed(picture.html)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', picture.html)
    assert pictures.curves_png({"m": series}, alt="x", log_x=log, log_y=log).png.startswith(b"\x89PNG")


def test_values_that_are_not_finite_are_said():
    html = pictures.curves_svg({"loss": {0: ([0, 1, 2], [1.0, NAN, NAN]), 1: ([0, 1], [1.0, 2.0])}}, alt="x").html
    assert "nan from rank 0, x = 1 (2 values)" in html


def test_eight_ranks_label_only_the_highest_and_the_lowest():
    labels = re.findall(r'y="[\d.]+" font-weight="600">([^<]+)<', pictures.curves_svg(curves(8), alt="x").html)
    assert sorted(labels) == ["0.0175", "0.02"]


@pytest.mark.parametrize("names", [range(8), [f"a run with a name of many words {i}" for i in range(6)]])
def test_the_legend_of_a_png_is_not_cut(names, monkeypatch):
    drawn = []
    monkeypatch.setattr("course_utils.pictures.curves.to_png", lambda figure: drawn.append(figure) or b"")
    pictures.curves_png({"loss": {name: ([0, 1], [0.0, 1.0]) for name in names}}, alt="x")
    (figure,) = drawn
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= min(ax.bbox.y0 for ax in figure.axes)


def test_png_is_transparent_and_knows_its_width():
    from io import BytesIO

    from matplotlib.image import imread

    picture = pictures.curves_png(curves(4), alt="four", title="T", foot="step 50")
    assert picture._repr_html_() is None
    data, meta = picture._repr_png_()
    image = imread(BytesIO(data))
    assert image.shape[1] == 2 * meta["width"]
    assert meta["alt"] == "four"
    assert image[..., 3].min() == 0
    assert (image[..., 3] == 0).mean() > 0.7


# -- gantt


def busy_timeline(steps: int, ranks: int = 8) -> Timeline:
    spans = []
    for rank in range(ranks):
        for i in range(steps):
            spans += [Span(rank, "forward", i, i + 0.3), Span(rank, "backward", i + 0.3, i + 0.9),
                      Span(rank, "all-reduce", i + 0.5, i + 0.95, "communication")]
    return Timeline(spans)


@pytest.fixture
def figures(monkeypatch):
    """The figures that become PNGs of timelines."""
    module = import_module("course_utils.pictures.gantt")  # pictures.gantt is the function
    found, to_png = [], module.to_png
    monkeypatch.setattr(module, "to_png", lambda figure: found.append(figure) or to_png(figure))
    return found


def texts(figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_gantt_is_a_png_of_the_full_width_with_a_text_and_a_legend(figures):
    picture = pictures.gantt(busy_timeline(2, ranks=3))
    data, meta = picture._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert meta["width"] == WIDTH
    assert meta["alt"] == picture.alt == repr(picture) == (
        "Gantt chart of 18 spans of 3 ranks over 1.95 s. "
        "89% of the communication happens while the same rank computes."
    )
    (figure,) = figures
    assert sorted(texts(figure)) == ["backward"] * 6 + ["forward"] * 6
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["forward", "backward", "communication"]
    boxes = figure.axes[0].collections[0]
    assert {to_hex(color).upper() for color in boxes.get_facecolor()} == {
        ROLE[role] for role in ("forward", "backward", "communication")}


def test_gantt_of_many_spans_stays_small_and_one_collection(figures):
    """An artist for each would take matplotlib minutes."""
    assert len(pictures.gantt(busy_timeline(900)).png) < 150_000
    assert len(figures[0].axes[0].get_children()) < 50


def test_overlapping_spans_of_a_thin_lane_lie_one_above_the_other(figures):
    spans = [Span(0, f"all-reduce {i}", i, i + 2.5, "communication") for i in range(5)]
    pictures.gantt(Timeline([*spans, Span(0, "forward", 0, 7)]))
    tops = {path.vertices[0, 0]: path.vertices[0, 1] for path in figures[0].axes[0].collections[0].get_paths()[1:]}
    assert [round(tops[1000 * i] - tops[1000]) for i in range(5)] == [-3, 0, 3, -3, 0]


def test_pipelines_say_the_waiting_and_number_every_box(figures):
    timeline = schedules.make("interleaved", ranks=4, micro_batches=8, chunks=2).simulate(forward=0.05, backward=0.1)
    picture = pictures.pipelines({"mine": timeline}, title="T", foot="F")
    assert picture.alt == "T. Gantt chart of 4 ranks. mine: 15.8% of the time is waiting. F"
    assert sorted(texts(figures[0])) == [str(i) for i in range(8) for _ in range(2 * 2 * 4)]
    names = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert names == ["forward", "backward", "waiting"]


def test_gantt_without_communication_names_the_longest_role_and_the_waiting():
    spans = [Span(0, "forward", 0, 1), Span(0, "backward", 1, 3), Span(1, "backward", 3, 4)]
    assert "Backward takes 38% of the time, ranks wait 50% of it" in pictures.gantt(Timeline(spans)).alt


@pytest.mark.parametrize("spans", [[], [Span(0, "$x_1$ <b>", 0, 1)], [Span(0, "forward", 1.0, 1.0)]])
def test_gantt_of_odd_timelines_still_draws(spans):
    assert pictures.gantt(Timeline(spans, title="a < $b$")).png.startswith(b"\x89PNG")


# -- player, bars, table, shares


def test_player_takes_whatever_draws_itself():
    timeline = Timeline([Span(0, "forward", 0, 1)], title='a "b"')
    html = pictures.player([timeline, pictures.gantt(timeline), pictures.table([[1]], ["n"])], title="T", alt="a").html
    assert html.count("data:image/png;base64,") == 3  # the first frame also stands there without JavaScript
    assert 'alt="a &quot;b&quot;: Gantt chart' in html.replace('\\"', '"')
    assert "<table" in html.replace("\\u003c", "<")


def test_player_shows_the_first_frame_without_javascript_and_asks_nothing_from_outside():
    frames = ["<b>one</b>", "</script><i>é\u2028</i>"]  # that cannot end the script that holds it
    html = pictures.player(frames, title="T", alt="a <text>", captions=["c1", "c2"]).html
    assert json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1])["frames"] == frames
    without = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert "<b>one</b>" in without
    assert "1 of 2: c1" in without
    assert "<button" not in without
    assert not re.search(r"https?://(?!www\.w3\.org)|src=|import |fetch\(| id=", html)
    parsed(html)


def test_bars_are_in_proportion():
    picture = pictures.bars({"CPU": 10.0, "GPU": 40.0, "none": NAN}, title="Speed", unit="images/s")
    parsed(picture.html)
    assert re.findall(r"calc\(([\d.]+)%", picture.html) == ["25.0", "100.0", "0.0"]
    assert picture.alt == "Speed: CPU 10 images/s, GPU 40 images/s, none nan images/s"


def test_table_reads_as_text_too():
    picture = pictures.table([["fp32", 1437, 0.97123], ["<b>", 20, 0.5]], ["precision", "n", "accuracy"], title="T")
    assert [cell.text for cell in parsed(picture.html).iter("td")][3:] == ["<b>", "20", "0.5"]
    assert repr(picture) == "T\nprecision      n  accuracy\nfp32       1,437     0.971\n<b>           20       0.5"


def test_shares_fill_what_a_rank_has_and_say_it():
    picture = pictures.shares({"no shuffling": [[0, 2], [1, 3]], "all": [range(4), []]}, of=4, columns=2)
    assert picture.html.count("background:") == 2 + 2 + 4
    assert "no shuffling: rank 0 has 0, 2; rank 1 has 1, 3. all: rank 0 has all; rank 1 has none." in picture.alt
    assert "repeat(2," in picture.html
