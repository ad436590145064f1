"""`launch`, `report` and `span` when all goes well; what goes wrong is in test_faults.py and test_messages.py."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.distributed as dist

from course_utils import CourseError, RankError, discover, launch, pick, report, span
from course_utils.machine import usable_cores

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="launch needs Linux or macOS")


class Recorder:
    """Stands in for a live plot: notes what launch asks of it."""

    def __init__(self) -> None:
        self.calls, self.records = [], []

    def open(self, unit: str) -> None:
        self.calls.append("open")

    def add(self, record: dict) -> None:
        self.records.append(record)

    def tick(self) -> float:
        return 0.05

    def close(self) -> None:
        self.calls.append("close")


def rank_of() -> int:
    return dist.get_rank()


def test_results_come_by_rank_with_arguments_passed_on():
    offset = 10

    def add(x, *, y):
        total = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(total)
        return x + y + offset + total.item() + dist.get_rank()

    run = launch(add, 1, y=2, ranks=3)
    assert run.results == [16.0, 17.0, 18.0]
    assert (run.ranks, run.device if not torch.cuda.is_available() else "cpu") == (3, "cpu")


def test_a_function_may_set_what_torch_backends_hold():
    def tune():
        torch.backends.cudnn.benchmark = True  # a module of a type of its own
        return torch.backends.cudnn.benchmark

    assert launch(tune, ranks=2).results == [True, True]


def test_tensors_and_classes_come_back_as_they_were():
    class Point:
        def __init__(self, x):
            self.x = x

    def make():
        return Point(torch.arange(3) + dist.get_rank()), {"rank": dist.get_rank()}

    (point, mapping), second = launch(make, ranks=2, device="cpu").results
    assert isinstance(point, Point)
    assert mapping == {"rank": 0}
    assert torch.equal(second[0].x, torch.tensor([1, 2, 3]))


def test_metrics_spans_and_prints_of_every_rank(capsys):
    def train():
        for step in range(3):
            with span("forward"):
                pass
            report(step=step, loss=torch.tensor(1.0 / (step + 1)), lr=0.1)
        later = span("all-reduce", lane="communication").start()
        later.stop()
        print("done", dist.get_rank())

    live = Recorder()
    run = launch(train, ranks=2, live=live)
    assert run.column("loss", rank=1) == pytest.approx([1.0, 0.5, 1 / 3])
    assert {(m["rank"], m["step"], m["lr"]) for m in run.metrics} == {(r, s, 0.1) for r in range(2) for s in range(3)}
    assert sorted(run.metrics, key=lambda m: m["time"]) == run.metrics
    assert len(run.timeline) == 8
    assert run.timeline.lanes == ("compute", "communication")
    assert [text.strip() for text in run.output] == ["done 0", "done 1"]
    shown = capsys.readouterr().out
    assert "[rank 0] done 0" in shown
    assert "[rank 1] done 1" in shown
    assert live.calls == ["open", "close"]
    assert len(live.records) == 6


def test_show_false_prints_nothing_and_keeps_everything(capsys):
    run = launch(lambda: print("a line", end=""), ranks=2, show=False)
    assert capsys.readouterr().out == ""
    assert run.output == ["a line", "a line"]


def test_report_counts_its_steps_when_none_is_given():
    def train():
        for _ in range(3):
            report(loss=0.0)

    assert [m["step"] for m in launch(train, ranks=1).metrics] == [0, 1, 2]


def test_report_and_span_are_harmless_outside_a_launch():
    report(step=0, loss=1.0)
    with span("forward"):
        pass
    with pytest.raises(ValueError, match="low"):
        report(loss="low")


@pytest.mark.parametrize("name", ["rank", "time"])
def test_report_refuses_the_names_it_fills_in(name):
    with pytest.raises(CourseError, match=name):
        report(**{name: 1.0})


def test_the_environment_is_that_of_torchrun():
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"]
    first, second = launch(lambda: {name: os.environ.get(name) for name in names}, ranks=2).results
    assert first["RANK"] == first["LOCAL_RANK"] == "0"
    assert second["RANK"] == second["LOCAL_RANK"] == "1"
    assert first["WORLD_SIZE"] == second["LOCAL_WORLD_SIZE"] == "2"
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert None not in first.values()


def test_a_function_may_open_the_process_group_itself():
    def own():
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return total.item()

    run = launch(own, ranks=2, device="cpu", init_group=False)
    assert run.results == [2.0, 2.0]
    assert run.backend is None


def test_ranks_share_the_cores_and_default_to_four():
    run = launch(torch.get_num_threads, device="cpu")
    ranks = discover().ranks
    assert run.results == [max(1, int(usable_cores() // ranks))] * ranks


def test_environment_and_folder_are_those_of_now_not_of_the_servers_start(monkeypatch, tmp_path):
    launch(rank_of, ranks=1)
    monkeypatch.setenv("COURSE_TEST", "new")
    monkeypatch.chdir(tmp_path)
    assert launch(lambda: (os.environ["COURSE_TEST"], os.getcwd()), ranks=1).results == [("new", str(tmp_path))]


def test_unseeded_ranks_draw_different_numbers_as_under_torchrun():
    draws = [launch(lambda: torch.rand(1).item(), ranks=2).results for _ in range(2)]
    assert len({value for pair in draws for value in pair}) == 4


def test_pick_is_the_ranks_own_device():
    assert launch(lambda: str(pick()), ranks=2, device="cpu").results == ["cpu", "cpu"]


def test_an_error_keeps_what_was_collected():
    def train():
        report(step=0, loss=0.5)
        with span("forward"):
            pass
        print("so far")
        raise ZeroDivisionError("on purpose")

    with pytest.raises(RankError, match="rank 0 of 1 raised ZeroDivisionError: on purpose") as caught:
        launch(train, ranks=1, show=False)
    error = caught.value
    assert (error.rank, error.cause) == (0, "ZeroDivisionError")
    assert "on purpose" in error.traceback
    assert error.run.column("loss") == [0.5]
    assert error.run.output == ["so far\n"]
    assert len(error.run.timeline) == 1


def test_a_live_plot_is_closed_when_a_rank_fails():
    live = Recorder()
    with pytest.raises(RankError):
        launch(lambda: 1 / 0, ranks=1, live=live)
    assert live.calls == ["open", "close"]


def test_the_same_function_runs_unchanged_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent("""
        import torch, torch.distributed as dist
        from course_utils import launch, report, span

        def train():
            with span("forward"):
                total = torch.ones(1) * dist.get_rank()
            dist.all_reduce(total)
            report(step=0, total=total.item())
            return total.item()

        if __name__ == "__main__":
            dist.init_process_group("gloo")
            print(f"total {train()}\\n", end="")  # in one piece: two workers write
            try:
                launch(train)
            except Exception as error:
                print(f"{type(error).__name__} {error}\\n", end="")
            dist.destroy_process_group()
    """))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.count("total 1.0") == 2, done.stderr
    assert done.stdout.count("CourseError this process was started by torchrun") == 2


def test_a_script_needs_no_main_guard(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        "from course_utils import launch\nimport torch.distributed as dist\n"
        "def f(): return dist.get_rank()\nprint(launch(f, ranks=2).results)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[0, 1]\n", done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": "four"}, "'four'"),
        ({"time_limit": float("nan")}, "time_limit=nan"),
    ],
)
def test_arguments_that_make_no_sense_start_nothing(options, words):
    with pytest.raises(CourseError, match=words):
        launch(rank_of, **options)


@pytest.mark.parametrize("thing", [None, 3, "train", [rank_of]])
def test_what_is_no_function_is_refused_in_words(thing):
    with pytest.raises(CourseError, match="launch needs a function"):
        launch(thing)


def test_a_generator_or_async_function_is_refused_in_words():
    def forever():
        yield 1

    async def later():
        return 1

    with pytest.raises(CourseError, match="yield"):
        launch(forever)
    with pytest.raises(CourseError, match="async"):
        launch(later)
