"""`launch`, `report` and `span` when all goes well."""

import ast
import os
import runpy
import time
import weakref

import psutil
import pytest
import torch
import torch.distributed as dist

from course_utils import LivePlot, RankError, launch, pick, report, span
from course_utils.ranks import state
from tests.files import write
from tests.kernel import posix
from tests.python import python

pytestmark = posix


def test_results_come_by_rank_with_arguments_passed_on():
    offset = 10

    def add(x, *, y):
        total = torch.tensor([float(dist.get_rank())], device=pick())
        dist.all_reduce(total)
        return x + y + offset + total.item() + dist.get_rank()

    assert launch(add, 1, y=2, ranks=3).results == [16.0, 17.0, 18.0]


def test_a_function_may_set_what_torch_backends_hold():
    def tune():
        torch.backends.cudnn.benchmark = True  # a module of a type of its own
        return torch.backends.cudnn.benchmark

    assert launch(tune, ranks=2).results == [True, True]


def test_what_a_function_held_is_freed_although_it_was_looked_at():
    def hold():
        tensor = torch.ones(1)
        time.sleep(1.2)  # five times a second a rank says in which function it is
        return weakref.ref(tensor)

    assert launch(lambda: hold()() is None, ranks=1).results == [True]


def test_metrics_spans_and_prints_of_every_rank(capsys):
    def train():
        for step in range(3):
            with span("forward"):
                pass
            report(loss=torch.tensor(1.0 / (step + 1)), lr=0.1)
        span("all-reduce", lane="communication").start().stop()
        print("done", dist.get_rank())

    plot = LivePlot("loss")
    run = launch(train, ranks=2, live=plot)
    assert run.column("loss", rank=1) == pytest.approx([1.0, 0.5, 1 / 3])
    assert {(m["rank"], m["step"], m["lr"]) for m in run.metrics} == {
        (r, s, 0.1) for r in range(2) for s in range(3)
    }
    assert sorted(run.metrics, key=lambda m: m["time"]) == run.metrics
    assert len(run.timeline.spans) == 8
    assert {span.lane for span in run.timeline.spans} == {"compute", "communication"}
    assert run.output == ["done 0\n", "done 1\n"]
    shown = capsys.readouterr().out
    assert "[rank 0] done 0" in shown
    assert "[rank 1] done 1" in shown
    assert plot.data["loss"] == {
        rank: ([0, 1, 2], pytest.approx([1.0, 0.5, 1 / 3])) for rank in range(2)
    }


def test_report_and_span_are_harmless_outside_a_launch():
    report(step=0, loss=1.0)
    with span("forward"):
        pass


def test_environment_and_folder_are_those_of_now_not_of_the_servers_start(monkeypatch, tmp_path):
    launch(dist.get_rank, ranks=1)
    monkeypatch.setenv("COURSE_TEST", "new")
    monkeypatch.chdir(tmp_path)
    run = launch(lambda: (os.environ["COURSE_TEST"], os.getcwd()), ranks=1)
    assert run.results == [("new", str(tmp_path))]


def test_threads_of_a_rank(monkeypatch):
    monkeypatch.setattr(psutil.Process, "environ", lambda _: {"OMP_NUM_THREADS": "3"})
    for value, share, threads in [("", 2, 2), ("7", 2, 7), ("3", 2, 2), ("3", 8, 3), ("3", 0, 1)]:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert state.threads(share) == threads, "set in the notebook, or before"


def test_unseeded_ranks_draw_different_numbers_as_under_torchrun():
    draws = [launch(lambda: torch.rand(1).item(), ranks=2).results for _ in range(2)]
    assert len({value for pair in draws for value in pair}) == 4


def test_an_error_keeps_what_was_collected(capsys):
    def train():
        report(step=0, loss=0.5)
        with span("forward"):
            pass
        print("so far", end="")
        raise ZeroDivisionError("on purpose")

    says = "rank 0 of 1 raised ZeroDivisionError: on purpose"
    with pytest.raises(RankError, match=says) as caught:
        launch(train, ranks=1, show=False)
    error = caught.value
    assert capsys.readouterr().out == ""
    assert (error.rank, error.cause) == (0, "ZeroDivisionError")
    assert "on purpose" in error.traceback
    assert error.run.column("loss") == [0.5]
    assert error.run.output == ["so far\n"]
    assert len(error.run.timeline.spans) == 1


NAMES = """
RANK LOCAL_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE ROLE_WORLD_SIZE ROLE_NAME GROUP_RANK
GROUP_WORLD_SIZE TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
"""
SCRIPT = """
import os, sys, torch, torch.distributed as dist
from course_utils import launch, report, span

def train(names):
    with span("forward"):
        total = torch.ones(1) * dist.get_rank()
    dist.all_reduce(total)
    report(step=0, total=total.item())
    return total.item(), [os.environ.get(name) for name in names]

if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = train(sys.argv[1:])
    try:
        launch(train)
    except Exception as error:
        with open(f"rank{dist.get_rank()}", "w") as file:
            file.write(repr([found, str(error)]))
    dist.destroy_process_group()
"""


def test_the_same_function_runs_unchanged_under_torchrun(tmp_path):
    names = NAMES.split()
    write(tmp_path, {"train.py": SCRIPT})
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    python(*torchrun, "train.py", *names, cwd=tmp_path)  # `report` writes there, too
    found = [ast.literal_eval((tmp_path / f"rank{rank}").read_text()) for rank in range(2)]
    train = runpy.run_path(str(tmp_path / "train.py"))["train"]
    assert [result for result, _ in found] == launch(train, names, ranks=2).results
    assert all("launch was called inside a rank" in error for _, error in found)


SPAWNS = """
import multiprocessing as mp
from course_utils import launch
def child(pipe):
    pipe.send("from a child")
def f():
    from .names import NAME
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=child, args=(theirs,)).start()
    return NAME, ours.recv()
if __name__ == "__main__":
    print(launch(f, ranks=1, device="cpu").results)
"""


@pytest.mark.slow
def test_a_module_that_is_run_has_its_package_and_spawns_processes(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "names.py").write_text("NAME = 'of a package'")
    (package / "train.py").write_text(SPAWNS)
    done = python("-m", "package.train", cwd=tmp_path)
    assert done.stdout == "[('of a package', 'from a child')]\n", done.stderr
