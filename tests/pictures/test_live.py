"""Live plots in a notebook that is played: how often they draw, what they take, how they end,
whatever happens.
"""

import contextlib
import gc
import itertools
import math
import re
import types

import pytest
import torch

from course_utils import CourseError, LivePlot, live
from course_utils.pictures import live as module


class Clock:
    """Time that passes only when it is told to; each reading of the processor's is `cost` later
    than the one before.
    """

    now, cost, used = 100.0, 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        self.used += self.cost
        return self.used


class Notebook:
    """What IPython is to a plot: a shell with events, and displays that remember what was put into
    them.
    """

    def __init__(self) -> None:
        self.execution_count = 1
        self.kernel = object()
        self.displays: list = []
        self.callbacks: list = []
        self.events = types.SimpleNamespace(register=lambda name, f: self.callbacks.append(f))

    def display(self, bundle, *, raw, metadata, display_id):
        assert raw
        assert display_id is True
        shown = [(bundle, metadata)]
        self.displays.append(shown)
        return types.SimpleNamespace(
            update=lambda bundle, *, raw, metadata: shown.append((bundle, metadata))
        )

    def end_cell(self):
        for callback in list(self.callbacks):
            callback(None)
        self.execution_count += 1

    @property
    def kinds(self) -> list[list[str]]:
        return [
            [next(k for k in bundle if k != "text/plain") for bundle, _ in shown]
            for shown in self.displays
        ]


@pytest.fixture
def notebook(monkeypatch):
    shell = Notebook()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr("IPython.display.display", shell.display)
    return shell


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def frames(notebook) -> int:
    return sum(kind == "text/html" for shown in notebook.kinds for kind in shown)


def run(plot, clock, steps, seconds):
    for step in range(steps):
        plot.update(step, loss=1 / (step + 1))
        clock.now += seconds / steps


def test_frames_come_at_most_four_times_a_second_in_a_fiftieth_of_a_core(notebook, clock):
    run(LivePlot("loss"), clock, steps=10_000, seconds=10.0)
    assert 38 <= frames(notebook) <= 41
    notebook.displays.clear()
    clock.cost = 0.05  # 50 ms a frame: one in 3.3 s
    run(LivePlot("loss"), clock, steps=10_000, seconds=50.0)
    assert 14 <= frames(notebook) <= 17
    notebook.displays.clear()
    clock.cost = 0.0
    run(LivePlot("loss"), clock, steps=24 * 3600, seconds=24 * 3600.0)
    assert 200 < frames(notebook) < 600, "of thousands of messages a page loses some"


def test_one_display_that_ends_in_a_png(notebook, clock):
    plot = LivePlot("loss", title="Digits")
    run(plot, clock, 20, 2.0)
    plot.close()
    plot.close()
    (kinds,) = notebook.kinds
    assert kinds.index("image/png") == len(kinds) - 1
    bundle, metadata = notebook.displays[0][-1]
    text = "Digits: loss 0.05 (step 20 · 10 steps/s · took 2 s)"
    assert bundle["text/plain"] == text
    assert metadata["image/png"]["alt"] == text


def test_outside_a_notebook_it_collects_and_prints_nothing(notebook, clock, capsys):
    notebook.kernel = None  # as in IPython in a terminal
    plot = LivePlot("loss")
    run(plot, clock, 50, 20.0)
    plot.close()
    assert notebook.displays == []
    assert capsys.readouterr() == ("", "")
    assert len(plot.data["loss"][0][1]) == 50


def test_the_end_of_the_cell_closes_a_plot_that_nobody_closed(notebook, clock):
    plot = LivePlot("loss")
    for _ in range(2):  # the next cell goes on, in a display of its own
        run(plot, clock, 5, 1.0)
        notebook.end_cell()
    assert [kinds[-1] for kinds in notebook.kinds] == ["image/png"] * 2
    assert len(plot.data["loss"][0][1]) == 10


def test_a_failing_picture_does_not_stop_the_training(notebook, clock, monkeypatch):
    monkeypatch.setattr("course_utils.pictures.curves.draw", lambda *a, **k: 1 / 0)
    plot = LivePlot("loss")
    with pytest.warns(UserWarning, match="was not drawn: ZeroDivisionError"):
        run(plot, clock, 50, 20.0)
    assert len(plot.data["loss"][0][1]) == 50


def test_values_are_taken_by_metric_all_of_a_record_or_none(clock):
    plot = LivePlot("loss")
    plot.update(loss=1)
    plot.update(loss=torch.tensor(2.0, requires_grad=True), accuracy=0.5)
    plot.update(torch.tensor(7), loss=3)
    with pytest.raises(CourseError, match="loss='high' is no number: give one"):
        plot.update(0, accuracy=1.0, loss="high")
    assert plot.data == {"loss": {0: ([0, 1, 7], [1.0, 2.0, 3.0])}, "accuracy": {0: ([1], [0.5])}}
    assert repr(plot) == "curves: loss 3"


@pytest.mark.parametrize("losses", [*itertools.permutations((1.0, math.nan, 2.0))])
def test_its_text_says_that_a_rank_has_a_nan_whichever_it_is(losses):
    plot = LivePlot()
    for rank, loss in enumerate(losses):
        plot.add({"rank": rank, "step": 0, "time": 0.0, "loss": loss})
    assert repr(plot) == "curves: loss 1 to nan"


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1.7e308, -1e300, 10**400, -5])
def test_steps_totals_and_values_of_any_size_end_in_a_picture(notebook, clock, odd):
    for total, mean in itertools.product((None, odd), (False, True)):
        plot = LivePlot(total=total, mean=mean)
        for step, value in ((0, 1.0), (odd, odd), (None, 1), (3, -odd)):
            plot.update(step, loss=value, good=1.0)
            clock.now += 10
        plot.close()
        assert notebook.kinds[-1] == ["text/html"] * 5 + ["image/png"]
        assert len(plot.data["good"][0][1]) == 4


def test_of_many_metrics_the_first_have_panels_and_the_line_says_how_many_have_none(
    notebook, clock
):
    for names in ([], [f"m{i}" for i in range(200)]):
        plot = LivePlot(*names)
        plot.update(**{f"m{i}": i for i in range(200)})
        (bundle, _) = notebook.displays[-1][-1]
        assert re.findall(r">(m\d+)<", bundle["text/html"]) == [f"m{i}" for i in range(16)]
        assert "184 more in plot.data and run.metrics</div>" in bundle["text/html"]
        assert repr(plot).endswith("m15 15")
        assert len(plot.data) == 200


def test_records_of_eight_ranks(notebook, clock):
    plot = LivePlot("loss", total=40)
    plot.open("core")
    assert "waiting" in notebook.displays[0][0][0]["text/html"]
    for step in range(40):
        for rank in range(8):
            plot.add({"rank": rank, "time": 0.1 * step, "step": step, "loss": float(rank)})
        clock.now += 0.1
        assert 0.05 <= plot.tick() <= 0.26
    plot.tick()  # nothing new, no frame
    plot.close()
    assert sorted(plot.data["loss"]) == list(range(8))
    assert len(notebook.displays) == 1
    assert 12 <= frames(notebook) - 1 <= 16
    last = notebook.displays[0][-2][0]["text/html"]
    assert "step 40 of 40" in last
    assert "core 7" in last
    assert notebook.kinds[0][-1] == "image/png"
    plot.open()
    assert not plot.data, "another launch starts afresh, in a new display"
    assert len(notebook.displays) == 2


def test_the_mean_of_steps_that_all_ranks_have_reported(notebook, clock):
    plot = LivePlot("loss", mean=True)
    plot.open("core")
    for rank in range(3):
        for step in range(3 if rank else 2):
            plot.add({"rank": rank, "time": 0.0, "step": step, "loss": float(rank + step)})
    assert plot._panels()["loss"] == {
        "mean of 3 cores": ([0, 1], [1.0, 2.0]),
        "highest": ([0, 1], [2.0, 3.0]),
        "lowest": ([0, 1], [0.0, 1.0]),
    }
    plot.close()
    assert notebook.kinds[0][-1] == "image/png"


def test_the_mean_of_steps_that_come_again_each_time(notebook):
    plot = LivePlot("loss", mean=True)
    for rank in range(2):
        for step, loss in ((0, 1.0), (1, 2.0), (0, 3.0), (2, 5.0)):  # restarted after step 1
            plot.add({"rank": rank, "time": 0.0, "step": step, "loss": loss + rank})
    plot.add({"rank": 0, "time": 0.0, "step": 2, "loss": 9.0})  # rank 1 is not there yet
    assert plot._panels()["loss"]["mean of 2 ranks"] == ([0, 1, 0, 2], [1.5, 2.5, 3.5, 5.5])


def test_rate_and_time_left_of_a_run_that_was_resumed_count_from_there(notebook, clock):
    plot = LivePlot("loss", total=1000)
    for step in range(900, 910):
        clock.now += 1
        plot.update(step, loss=1.0)
    line = notebook.displays[0][-1][0]["text/plain"]
    assert "step 910 of 1,000 · 1.11 steps/s · 81 s left" in line, line


def test_live_yields_everything_and_shows_progress(notebook, clock):
    plot, seen = LivePlot("loss"), []
    for batch in live(["a", "b", "c", "d"], plot):
        seen.append(batch)
        plot.update(loss=0.5)
        clock.now += 2
    assert seen == ["a", "b", "c", "d"]
    lines = [bundle["text/html"] for bundle, _ in notebook.displays[0][:-1]]
    assert any("step 2 of 4 · 2 s/step · 4 s left" in line for line in lines)
    assert notebook.displays[0][-1][0]["text/plain"].endswith("(step 4 of 4 · 2 s/step · took 8 s)")
    for _ in range(2):  # epochs over one plot share its display
        for _ in live(range(5), plot):
            plot.update(loss=1.0)
    assert len(notebook.displays) == 1
    assert len(plot.data["loss"][0][1]) == 14


def test_live_without_a_plot_ends_in_a_line_and_takes_what_has_no_length(notebook, clock):
    ends = [(range(3), "epoch 3 of 3"), ((c for c in "ab"), "epoch 2"), ([], "epoch 0")]
    for items, line in ends:
        list(live(items, unit="epoch"))
        assert notebook.displays[-1][-1][0]["text/plain"] == line


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, None])
def test_a_loop_that_fails_or_is_left_still_ends_in_a_png(notebook, clock, error):
    plot = LivePlot("loss")

    def train():
        for _ in live(range(5), plot):
            plot.update(loss=1.0)
            if error is None:
                break
            raise error("stop")

    with pytest.raises(error, match="stop") if error else contextlib.nullcontext():
        train()
    gc.collect()
    assert notebook.kinds[0][-1] == "image/png"
