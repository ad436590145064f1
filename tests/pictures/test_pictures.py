"""Timelines, players, bars, tables, shares: what is drawn, and the text of each."""

import json
import re

import matplotlib
import pytest
from matplotlib.colors import to_hex

from course_utils import Span, Timeline, pictures, schedules
from course_utils.style import ROLE, WIDTH


def texts(figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_gantt_is_a_png_of_the_full_width_with_a_text_and_a_legend(figures):
    step = [("forward", 0, 0.3), ("backward", 0.3, 0.9), ("all-reduce", 0.5, 0.95, "communication")]
    spans = [
        Span(rank, name, i + start, i + end, *lane)
        for rank in range(3)
        for i in range(600)
        for name, start, end, *lane in step
    ]
    picture = pictures.gantt(Timeline(spans).between(0, 2))
    data, meta = picture._repr_png_()
    assert data.startswith(b"\x89PNG")
    alt = (
        "Gantt chart of 18 spans of 3 ranks over 1.95 s. "
        "89% of the communication happens while the same rank computes."
    )
    assert meta == {"width": WIDTH, "alt": alt}
    assert repr(picture) == alt
    (figure,) = figures
    assert sorted(texts(figure)) == ["backward"] * 6 + ["forward"] * 6
    assert legend(figure) == ["forward", "backward", "communication"]
    colors = figure.axes[0].collections[0].get_facecolor()
    assert {to_hex(color).upper() for color in colors} == {ROLE[role] for role in legend(figure)}


def test_of_many_spans_the_last_are_drawn_and_those_under_way_with_them(figures):
    spans = [Span(rank, "forward", i, i + 0.9) for i in range(25_000) for rank in range(8)]
    picture = pictures.gantt(Timeline([*spans, Span(9, "wait", 0, 26_000)], title="T"))
    assert picture.alt == (
        "T: Gantt chart of 2,001 spans of 9 ranks over 20.83 min. "
        "The last 2,000 of 200,001 spans: Forward takes 16% of the time, ranks wait 84% of it."
    )
    axes = figures[0].axes[0]
    assert len(axes.get_children()) < 50, "an artist for each span would take matplotlib minutes"
    assert len(axes.collections[0].get_paths()) == 2001


def test_work_inside_work_and_of_several_threads_counts_once(figures):
    inner = [Span(0, f"forward block {i}", i, i + 1) for i in range(3)]
    timeline = Timeline([Span(0, "forward", 0, 3), *inner, Span(0, "data", 3, 4, "threads")])
    assert "Forward takes 75% of the time" in pictures.gantt(timeline).alt


def test_a_rank_without_spans_has_a_row_and_counts(figures):
    timeline = Timeline([Span(0, "forward", 0, 1)], ranks=range(4)).between(0, 0.5).titled("T")
    assert timeline.idle() == 0.75
    alt = pictures.gantt(timeline).alt
    assert "4 ranks over 500 ms. Forward takes 25% of the time, ranks wait 75% of it." in alt


def test_a_picture_is_as_large_whatever_the_reader_has_set_for_own_figures():
    def drawn():
        return pictures.gantt(Timeline([Span(0, "forward", 0, 1)])).png

    before = drawn()
    own = {"savefig.dpi": 300, "savefig.bbox": "tight", "figure.autolayout": True}
    with matplotlib.rc_context(own):
        assert drawn() == before


def test_of_texts_on_each_other_one_is_drawn_the_inner_one(figures):
    nested = [Span(0, f"send {i}", -i / 1000, i / 1000) for i in range(1000, 2000)]
    pictures.gantt(Timeline(nested))
    assert texts(figures[0]) == ["send 1000"]
    blocks = [Span(0, f"block {i}", i, i + 1) for i in range(3)]
    pictures.gantt(Timeline([Span(0, "forward", 0, 3), *blocks]))
    assert texts(figures[1]) == ["block 0", "block 1", "block 2"]


def test_overlapping_spans_of_a_thin_lane_lie_one_above_the_other(figures):
    spans = [Span(0, f"all-reduce {i}", i, i + 2.5, "communication") for i in range(5)]
    pictures.gantt(Timeline([*spans, Span(0, "forward", 0, 7)]))
    _, *thin = figures[0].axes[0].collections[0].get_paths()
    tops = {path.vertices[0, 0]: path.vertices[0, 1] for path in thin}
    assert [round(tops[i] - tops[1]) for i in range(5)] == [-3, 0, 3, -3, 0]


def test_pipelines_say_the_waiting_and_number_every_box(figures):
    schedule = schedules.make("interleaved", ranks=4, micro_batches=8, chunks=2)
    timeline = schedule.simulate(forward=0.05, backward=0.1)
    picture = pictures.pipelines({"mine": timeline}, title="T", foot="F")
    assert picture.alt == "T. Gantt chart of 4 ranks. mine: 15.8% of the time is waiting. F"
    assert sorted(texts(figures[0])) == [str(i) for i in range(8) for _ in range(2 * 2 * 4)]
    assert legend(figures[0]) == ["forward", "backward", "waiting"]
    pictures.pipelines({"without numbers": Timeline([Span(0, "forward", 0, 1)])})


@pytest.mark.parametrize(
    "spans", [[], [Span(0, "$x_1$ <b>", 0, 1)], [Span(0, "forward", 1.0, 1.0)]]
)
def test_gantt_of_odd_timelines_still_draws(spans):
    assert pictures.gantt(Timeline(spans, title="a < $b$")).png.startswith(b"\x89PNG")
    spans = [Span(0, "forward", 0, 1), Span(0, "backward", 1, 3), Span(1, "backward", 3, 4), *spans]
    assert "Backward takes 38% of the time, ranks wait" in pictures.gantt(Timeline(spans)).alt


def test_player_shows_the_first_frame_without_javascript_and_asks_nothing_from_outside():
    # The second cannot end the script that holds it.
    frames = ["<b>one</b><text>1</text>", "</script><i>é\u2028</i>"]
    html = pictures.player(frames, title="T", alt="a <text>", captions=["c1", "c2"]).html
    stored = re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1]
    assert json.loads(stored)["frames"] == frames
    without = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert "<b>one</b></div>" in without
    assert "1 of 2: c1" in without
    assert "<button" not in without
    assert not re.search(r"https?://(?!www\.w3\.org)|src=|import |fetch\(| id=", html)


def test_bars_are_in_proportion():
    picture = pictures.bars({"CPU": 10.0, "GPU": 40.0}, title="Speed", unit="images/s")
    assert re.findall(r"width:([\d.]+)%", picture.html) == ["19.5", "78.0"]
    assert picture.alt == "Speed: CPU 10 images/s, GPU 40 images/s"


def test_table_reads_as_text_too():
    picture = pictures.table(
        [["fp32", 1437, 0.97123], ["<b>", 20, 0.5]], ["precision", "n", "accuracy"], title="T"
    )
    assert re.findall(r"<td[^>]*>([^<]*)", picture.html)[3:] == ["&lt;b&gt;", "20", "0.5"]
    assert repr(picture).splitlines() == [
        "T",
        "precision      n  accuracy",
        "fp32       1,437     0.971",
        "<b>           20       0.5",
    ]


def test_shares_fill_what_a_rank_has_and_say_it():
    picture = pictures.shares(
        {"no shuffling": [[0, 2], [1, 3]], "all": [range(4), []]}, of=4, columns=2
    )
    squares = re.findall("13px;height:13px[^>]*;(border:|background:)", picture.html)
    full, empty = "background:", "border:"
    no_shuffling = [full, empty, full, empty, empty, full, empty, full]
    assert squares == no_shuffling + [full] * 4 + [empty] * 4
    assert picture.alt == (
        "no shuffling: rank 0 has 0, 2; rank 1 has 1, 3. all: rank 0 has all; rank 1 has none."
    )
    assert "repeat(2," in picture.html, "two squares in a line"
    assert "flex-flow:row" in picture.html
    wide = pictures.shares({f"epoch {i}": [range(17)] for i in range(3)}, of=17)
    assert "flex-flow:column" in wide.html, "too wide to stand beside each other"
