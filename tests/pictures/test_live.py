import base64
import gc
import sys
import types

import pytest

from course_utils import CourseError, live
from course_utils.pictures import screen
from course_utils.pictures.live import FRAMES, LivePlot

NAN, INF = float("nan"), float("inf")


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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
def clock():
    return Clock()


def plot_of(clock, *names, cost=0.0, **options) -> LivePlot:
    """A plot for which every reading of the processor's time is `cost` later than the one before."""
    used = iter(range(10**9))
    return LivePlot(*names, clock=clock, cpu=lambda: next(used) * cost, **options)


def frames(notebook) -> int:
    return sum(kind == "text/html" for shown in notebook.kinds for kind in shown)


def run(plot, clock, steps, seconds):
    for step in range(steps):
        plot.update(step, loss=1 / (step + 1))
        clock.now += seconds / steps


# -- how often it draws


def test_frames_come_at_most_four_times_a_second(notebook, clock):
    plot = plot_of(clock, "loss")
    run(plot, clock, steps=10_000, seconds=10.0)
    assert 38 <= frames(notebook) <= 40
    assert plot.frames == frames(notebook)


def test_dear_frames_get_two_percent_of_a_core(notebook, clock):
    run(plot_of(clock, "loss", cost=0.05), clock, steps=10_000, seconds=50.0)  # 50 ms a frame: one in 2.5 s
    assert 19 <= frames(notebook) <= 21


def test_slow_steps_get_a_frame_each(notebook, clock):
    run(plot_of(clock, "loss"), clock, steps=7, seconds=14.0)
    assert frames(notebook) == 7


def test_hours_stay_within_the_limit_and_it_is_not_used_up_in_minutes(notebook, clock):
    plot = plot_of(clock, "loss")
    run(plot, clock, steps=3600, seconds=3600.0)
    assert 200 < frames(notebook) < FRAMES
    run(plot, clock, steps=1000, seconds=1e9)
    assert frames(notebook) == FRAMES
    plot.close()
    assert notebook.kinds[-1][-1] == "image/png"


def test_one_display_that_ends_in_a_png(notebook, clock):
    plot = plot_of(clock, "loss", title="Digits")
    run(plot, clock, 20, 2.0)
    plot.close()
    plot.close()
    assert len(notebook.displays) == 1
    kinds = notebook.kinds[0]
    assert kinds.count("image/png") == 1
    assert kinds[-1] == "image/png"
    bundle, metadata = notebook.displays[0][-1]
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "Digits: loss 0.05 (step 20 · 10 steps/s · took 2.0 s)"
    assert metadata["image/png"]["alt"] == bundle["text/plain"]


def test_course_live_0_draws_the_png_only(notebook, clock, monkeypatch):
    monkeypatch.setenv("COURSE_LIVE", "0")
    plot = plot_of(clock, "loss")
    plot.open()
    run(plot, clock, 50, 20.0)
    assert notebook.displays == []
    plot.close()
    assert notebook.kinds == [["image/png"]]


def test_outside_a_notebook_it_collects_and_prints_nothing(clock, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    plot = plot_of(clock, "loss")
    run(plot, clock, 50, 20.0)
    plot.close()
    assert capsys.readouterr() == ("", "")
    assert len(plot.data["loss"][0][1]) == 50
    assert "IPython" not in sys.modules


def test_ipython_in_a_terminal_is_no_notebook(notebook, clock):
    notebook.kernel = None
    plot = plot_of(clock, "loss")
    run(plot, clock, 50, 20.0)
    plot.close()
    assert notebook.displays == []


def test_the_end_of_the_cell_closes_a_plot_that_nobody_closed(notebook, clock):
    plot = plot_of(clock, "loss")
    run(plot, clock, 5, 1.0)
    notebook.end_cell()
    assert notebook.kinds[0][-1] == "image/png"
    assert screen._open == {}
    run(plot, clock, 5, 1.0)  # the next cell goes on, in a display of its own
    notebook.end_cell()
    assert [kinds[-1] for kinds in notebook.kinds] == ["image/png"] * 2
    assert len(plot.data["loss"][0][1]) == 10


def test_a_failing_picture_does_not_stop_the_training(notebook, clock, monkeypatch, capsys):
    monkeypatch.setattr("course_utils.pictures.curves.draw", lambda *a, **k: 1 / 0)
    plot = plot_of(clock, "loss")
    run(plot, clock, 50, 20.0)
    assert capsys.readouterr().out.count("The live plot stopped (ZeroDivisionError") == 1
    assert len(plot.data["loss"][0][1]) == 50


def test_without_matplotlib_the_last_frame_stays(notebook, clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plot = plot_of(clock, "loss")
    run(plot, clock, 5, 1.0)
    plot.close()
    assert set(notebook.kinds[0]) == {"text/html"}
    assert "took 1.0 s" in notebook.displays[0][-1][0]["text/html"]


# -- what it takes


def test_values_by_metric_and_rank(clock):
    plot = plot_of(clock, "loss")
    plot.update(loss=1)
    plot.update(loss=2.0, accuracy=0.5)
    plot.update(7, rank=1, loss=3)
    assert plot.data == {"loss": {0: ([0, 1], [1.0, 2.0]), 1: ([7], [3.0])}, "accuracy": {0: ([1], [0.5])}}
    assert repr(plot) == "LivePlot(loss): 2 steps, 2 ranks"


def test_tensors_without_dimension_are_numbers(clock):
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    plot = plot_of(clock)
    plot.update(torch.tensor(3), loss=torch.tensor(0.5, requires_grad=True), other=numpy.float32(2))
    assert plot.data == {"loss": {0: ([3.0], [0.5])}, "other": {0: ([3.0], [2.0])}}


@pytest.mark.parametrize("value", ["high", None, [1.0], {}, 1j, object()])
def test_what_is_not_a_number_is_refused(clock, value):
    plot = plot_of(clock, "loss")
    with pytest.raises((TypeError, ValueError)):
        plot.update(0, accuracy=1.0, loss=value)
    assert plot.data == {}  # all of a record, or nothing


def test_tensors_with_dimensions_are_refused_in_torchs_words(clock):
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match=r"6 elements"):
        plot_of(clock).update(loss=torch.zeros(3, 2))


@pytest.mark.parametrize("step", [NAN, INF])
def test_steps_are_finite_numbers(clock, step):
    with pytest.raises(CourseError, match="step is"):
        plot_of(clock).update(step, loss=1.0)


@pytest.mark.parametrize("rank", [-1, "0", None, 1.5])
def test_ranks_are_whole_numbers(clock, rank):
    with pytest.raises(CourseError, match="ranks are whole numbers from 0"):
        plot_of(clock).update(0, rank=rank, loss=1.0)


def test_plots_are_made_of_names():
    with pytest.raises(CourseError, match=r"LivePlot\(3\)"):
        LivePlot(3)
    with pytest.raises(CourseError, match=r"LivePlot\(total=0\)"):
        LivePlot("loss", total=0)


@pytest.mark.parametrize("values", [[], [1.0], [NAN], [INF, -INF, 1.0], [NAN, 1.0, 2.0]])
def test_few_and_odd_values_are_drawn(notebook, clock, values):
    plot = plot_of(clock, "loss", "steps/s")
    plot.open()
    for value in values:
        plot.update(loss=value)
        clock.now += 1
    plot.close()
    assert notebook.kinds[-1][-1] == ("image/png" if values else "text/html")


def test_steps_per_second_are_measured_from_the_steps(clock):
    plot = plot_of(clock, "loss", "steps/s")
    for step in range(0, 400, 10):  # ten steps in a quarter of a second
        plot.update(step, loss=1.0)
        clock.now += 0.25
    rates = plot.data["steps/s"][0][1]
    assert len(rates) == 39
    assert rates == pytest.approx([40.0] * 39)


def test_a_rate_of_ones_own_is_left_alone(clock):
    plot = plot_of(clock, "steps/s")
    for step in range(10):
        plot.update(step, **{"steps/s": 7.0})
        clock.now += 1
    assert plot.data["steps/s"][0][1] == [7.0] * 10


# -- fed by a launch


def test_records_of_eight_ranks(notebook, clock):
    plot = plot_of(clock, "loss", "steps/s", total=40)
    plot.open()
    assert "waiting" in notebook.displays[0][0][0]["text/html"]
    assert plot.tick() > 0
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
    assert "step 40 of 40" in notebook.displays[0][-2][0]["text/html"]
    assert notebook.kinds[0][-1] == "image/png"


def test_nothing_new_no_frame(notebook, clock):
    plot = plot_of(clock, "loss")
    plot.open()
    plot.add({"rank": 0, "time": 0.0, "step": 0, "loss": 1.0})
    for _ in range(100):
        plot.tick()
        clock.now += 1
    assert frames(notebook) == 2  # the empty one, and one with the value


def test_bad_records_never_reach_the_run(clock):
    plot = plot_of(clock, "loss")
    for record in ({}, {"rank": "x", "loss": 1.0}, {"rank": 0, "step": "y", "loss": 1.0}, {"rank": 0, "step": []}):
        plot.add(record)
    plot.add({"rank": 0, "step": 0, "loss": "broken", "accuracy": 1.0})
    assert plot.data == {"accuracy": {0: ([0], [1.0])}}


def test_opened_again_it_starts_afresh_in_a_new_display(notebook, clock):
    plot = plot_of(clock, "loss")
    for _ in range(2):
        plot.open()
        plot.add({"rank": 0, "time": 0.0, "step": 0, "loss": 1.0})
        plot.close()
        assert plot.data["loss"][0] == ([0], [1.0])
    assert len(notebook.displays) == 2


def test_tick_of_a_plot_that_draws_no_more_is_a_time_one_can_wait(clock, monkeypatch):
    monkeypatch.setenv("COURSE_LIVE", "0")
    plot = plot_of(clock, "loss")
    plot.open()
    plot.add({"rank": 0, "time": 0.0, "step": 0, "loss": 1.0})
    plot.tick()
    assert 0 < plot.tick() <= 60


# -- the loop


def test_live_yields_everything_and_shows_progress(notebook, clock):
    plot = plot_of(clock, "loss")
    seen = []
    for batch in live(["a", "b", "c", "d"], plot):
        seen.append(batch)
        plot.update(loss=0.5)
        clock.now += 2
    assert seen == ["a", "b", "c", "d"]
    lines = [bundle["text/html"] for bundle, _ in notebook.displays[0][:-1]]
    assert any("step 2 of 4 · 2 s/step · 4.0 s left" in line for line in lines)
    assert notebook.displays[0][-1][0]["text/plain"].endswith("(step 4 of 4 · 2 s/step · took 8.0 s)")


def test_live_without_a_plot_ends_in_a_line(notebook):
    assert list(live(range(3), unit="epoch")) == [0, 1, 2]
    bundle = notebook.displays[0][-1][0]
    assert "image/png" not in bundle
    assert bundle["text/plain"].startswith("epoch 3 of 3")


def test_live_takes_what_has_no_length(notebook):
    assert list(live(iter("ab"))) == ["a", "b"]
    assert list(live(iter("ab"), total=2)) == ["a", "b"]
    assert list(live([])) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["body", "loader"])
def test_an_error_in_the_loop_closes_the_plot_and_passes(notebook, clock, error, where):
    plot = plot_of(clock, "loss")

    def loader():
        yield 1
        if where == "loader":
            raise error("stop")
        yield 2

    def train():
        for _ in live(loader(), plot):
            plot.update(loss=1.0)
            if where == "body":
                raise error("stop")

    with pytest.raises(error, match="stop"):
        train()
    gc.collect()
    assert notebook.kinds[0][-1] == "image/png"
    assert screen._open == {}


def test_break_closes_the_plot(notebook, clock):
    plot = plot_of(clock, "loss")
    for i in live(range(100), plot):
        plot.update(loss=1.0)
        if i == 3:
            break
    assert notebook.kinds[0][-1] == "image/png"


def test_epochs_over_one_plot_share_its_display(notebook, clock):
    plot = plot_of(clock, "loss")
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
