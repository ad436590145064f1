import base64
import contextlib
import gc
import sys
import types

import pytest

from course_utils import CourseError, live
from course_utils.pictures import live as module
from course_utils.pictures import screen
from course_utils.pictures.live import FRAMES, LivePlot

NAN, INF = float("nan"), float("inf")


class Clock:
    """Time that passes only when it is told to; each reading of the processor's is `cost` later than the one before."""

    now, cost, used = 100.0, 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        self.used += self.cost
        return self.used


class Notebook:
    """What IPython is to a plot: a shell with events, and displays that remember what was put into them."""

    def __init__(self) -> None:
        self.execution_count, self.kernel, self.displays, self.callbacks = 1, object(), [], []
        self.events = types.SimpleNamespace(
            register=lambda name, f: self.callbacks.append(f), unregister=lambda name, f: self.callbacks.remove(f)
        )

    def display(self, bundle, *, raw, metadata, display_id):
        assert raw
        assert display_id is True
        shown = [(bundle, metadata)]
        self.displays.append(shown)
        return types.SimpleNamespace(update=lambda bundle, *, raw, metadata: shown.append((bundle, metadata)))

    def end_cell(self):
        for callback in list(self.callbacks):
            callback(None)
        self.execution_count += 1

    @property
    def kinds(self) -> list[list[str]]:
        return [[next(k for k in bundle if k != "text/plain") for bundle, _ in shown] for shown in self.displays]


@pytest.fixture
def notebook(monkeypatch):
    monkeypatch.delenv("COURSE_LIVE", raising=False)
    shell = Notebook()
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.version_info = (9, 0)  # matplotlib asks for it when it is imported
    ipython.get_ipython, display.display = lambda: shell, shell.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(screen, "_open", {})
    return shell


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(module, "time", clock := Clock())
    return clock


def frames(notebook) -> int:
    return sum(kind == "text/html" for shown in notebook.kinds for kind in shown)


def run(plot, clock, steps, seconds):
    for step in range(steps):
        plot.update(step, loss=1 / (step + 1))
        clock.now += seconds / steps


# -- how often it draws


def test_frames_come_at_most_four_times_a_second_in_two_percent_of_a_core(notebook, clock):
    plot = LivePlot("loss")
    run(plot, clock, steps=10_000, seconds=10.0)
    assert 38 <= frames(notebook) == plot.frames <= 40
    clock.cost = 0.05  # 50 ms a frame: one in 2.5 s
    run(dear := LivePlot("loss"), clock, steps=10_000, seconds=50.0)
    assert 19 <= dear.frames <= 21
    clock.cost = 0.0
    run(slow := LivePlot("loss"), clock, steps=7, seconds=14.0)
    assert slow.frames == 7


def test_hours_stay_within_the_limit_and_it_is_not_used_up_in_minutes(notebook, clock):
    plot = LivePlot("loss")
    run(plot, clock, steps=3600, seconds=3600.0)
    assert 200 < frames(notebook) < FRAMES
    run(plot, clock, steps=1000, seconds=1e9)
    assert frames(notebook) == FRAMES
    plot.close()
    assert notebook.kinds[-1][-1] == "image/png"


def test_one_display_that_ends_in_a_png(notebook, clock):
    plot = LivePlot("loss", title="Digits")
    run(plot, clock, 20, 2.0)
    plot.close()
    plot.close()
    (kinds,) = notebook.kinds
    assert kinds.count("image/png") == 1
    assert kinds[-1] == "image/png"
    bundle, metadata = notebook.displays[0][-1]
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "Digits: loss 0.05 (step 20 · 10 steps/s · took 2 s)" == metadata["image/png"]["alt"]


def test_course_live_0_draws_the_png_only(notebook, clock, monkeypatch):
    monkeypatch.setenv("COURSE_LIVE", "0")
    plot = LivePlot("loss")
    plot.open()
    run(plot, clock, 50, 20.0)
    assert notebook.displays == []
    assert 0 < plot.tick() <= 60
    plot.close()
    assert notebook.kinds == [["image/png"]]


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
    assert screen._open == {}


def test_a_failing_picture_does_not_stop_the_training(notebook, clock, monkeypatch, capsys):
    monkeypatch.setattr("course_utils.pictures.curves.draw", lambda *a, **k: 1 / 0)
    plot = LivePlot("loss")
    run(plot, clock, 50, 20.0)
    plot.close()
    assert capsys.readouterr().out.count("The live plot stopped (ZeroDivisionError") == 1
    assert len(plot.data["loss"][0][1]) == 50


def test_without_matplotlib_the_last_frame_stays(notebook, clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plot = LivePlot("loss")
    run(plot, clock, 5, 1.0)
    plot.close()
    assert set(notebook.kinds[0]) == {"text/html"}
    assert "took 1 s" in notebook.displays[0][-1][0]["text/html"]


# -- what it takes


def test_values_by_metric_and_rank(clock):
    torch = pytest.importorskip("torch")
    plot = LivePlot("loss")
    plot.update(loss=1)
    plot.update(loss=torch.tensor(2.0, requires_grad=True), accuracy=0.5)
    plot.update(torch.tensor(7), rank=1, loss=3)
    assert plot.data == {"loss": {0: ([0, 1], [1.0, 2.0]), 1: ([7], [3.0])}, "accuracy": {0: ([1], [0.5])}}
    assert repr(plot) == "LivePlot(loss): 2 steps, 2 ranks"


@pytest.mark.parametrize("value", ["high", None, [1.0], {}, 1j, object()])
def test_of_a_record_all_is_taken_or_nothing(clock, value):
    plot = LivePlot("loss")
    with pytest.raises((TypeError, ValueError)):
        plot.update(0, accuracy=1.0, loss=value)
    assert plot.data == {}


@pytest.mark.parametrize(("place", "words"), [
    ({"step": NAN}, "step is"), ({"step": INF}, "step is"), ({"rank": -1}, "ranks are"), ({"rank": "0"}, "ranks are")])
def test_steps_are_finite_and_ranks_whole(clock, place, words):
    with pytest.raises(CourseError, match=words):
        LivePlot().update(**place, loss=1.0)


def test_plots_are_made_of_names():
    with pytest.raises(CourseError, match=r"LivePlot\(3\)"):
        LivePlot(3)
    with pytest.raises(CourseError, match=r"LivePlot\(total=0\)"):
        LivePlot("loss", total=0)


@pytest.mark.parametrize("values", [[], [1.0], [NAN], [INF, -INF, 1.0], [NAN, 1.0, 2.0]])
def test_few_and_odd_values_are_drawn(notebook, clock, values):
    plot = LivePlot("loss", "steps/s")
    plot.open()
    for value in values:
        plot.update(loss=value)
        clock.now += 1
    plot.close()
    assert notebook.kinds[-1][-1] == ("image/png" if values else "text/html")


def test_steps_per_second_are_measured_from_the_steps(clock):
    plot = LivePlot("loss", "steps/s")
    for step in range(0, 400, 10):  # ten steps in a quarter of a second
        plot.update(step, loss=1.0)
        clock.now += 0.25
    assert plot.data["steps/s"][0][1] == pytest.approx([40.0] * 39)
    own = LivePlot("steps/s")
    for step in range(10):
        own.update(step, **{"steps/s": 7.0})
        clock.now += 1
    assert own.data["steps/s"][0][1] == [7.0] * 10


# -- fed by a launch


def test_records_of_eight_ranks(notebook, clock):
    plot = LivePlot("loss", "steps/s", total=40)
    plot.open("core")
    assert "waiting" in notebook.displays[0][0][0]["text/html"]
    for step in range(40):
        for rank in range(8):
            plot.add({"rank": rank, "time": 0.1 * step, "step": step, "loss": float(rank)})
        clock.now += 0.1
        assert 0.05 <= plot.tick() <= 0.26
    plot.close()
    assert sorted(plot.data["loss"]) == list(range(8))
    assert plot.data["steps/s"][3][1][0] == pytest.approx(10.0)
    assert len(notebook.displays) == 1
    assert 12 <= frames(notebook) - 1 <= 16
    last = notebook.displays[0][-2][0]["text/html"]
    assert "step 40 of 40" in last
    assert "core 7" in last
    assert notebook.kinds[0][-1] == "image/png"


def test_nothing_new_no_frame_and_bad_records_are_left_out(notebook, clock):
    plot = LivePlot("loss")
    plot.open()
    for record in ({"rank": "x", "loss": 1.0}, {"step": "y", "loss": 1.0}, {"step": []}, {"loss": "no", "accuracy": 1}):
        plot.add({"rank": 0, "step": 0} | record)
    assert plot.data == {"accuracy": {0: ([0], [1.0])}}
    for _ in range(100):
        plot.tick()
        clock.now += 1
    assert frames(notebook) == 2  # the empty one, and one with the value


def test_opened_again_it_starts_afresh_in_a_new_display(notebook, clock):
    plot = LivePlot("loss")
    for _ in range(2):
        plot.open()
        plot.add({"rank": 0, "time": 0.0, "step": 0, "loss": 1.0})
        plot.close()
        assert plot.data["loss"][0] == ([0], [1.0])
    assert len(notebook.displays) == 2


# -- the loop


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


def test_live_without_a_plot_ends_in_a_line_and_takes_what_has_no_length(notebook, clock):
    assert list(live(range(3), unit="epoch")) == [0, 1, 2]
    assert notebook.displays[0][-1][0]["text/plain"].startswith("epoch 3 of 3")
    assert list(live(iter("ab"))) == ["a", "b"]
    assert list(live([])) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, None])
@pytest.mark.parametrize("where", ["body", "loader"])
def test_a_loop_that_fails_or_is_left_still_ends_in_a_png(notebook, clock, error, where):
    plot = LivePlot("loss")

    def loader():
        yield 1
        if where == "loader" and error:
            raise error("stop")
        yield 2

    def train():
        for _ in live(loader(), plot):
            plot.update(loss=1.0)
            if where == "body":
                if error is None:
                    break
                raise error("stop")

    with pytest.raises(error, match="stop") if error else contextlib.nullcontext():
        train()
    gc.collect()
    assert notebook.kinds[0][-1] == "image/png"
    assert screen._open == {}


def test_epochs_over_one_plot_share_its_display(notebook, clock):
    plot = LivePlot("loss")
    for _ in range(3):
        for _ in live(range(5), plot):
            plot.update(loss=1.0)
    assert len(notebook.displays) == 1
    assert len(plot.data["loss"][0][1]) == 15


def test_live_says_what_it_cannot_loop_over():
    with pytest.raises(CourseError, match=r"live\(5\) has nothing to loop over"):
        live(5)
    with pytest.raises(CourseError, match="second argument is a LivePlot"):
        live([1], "loss")
