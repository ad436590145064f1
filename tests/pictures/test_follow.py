"""A run that the notebook did not start, in the notebook's plot: its ranks' files, whatever happens to them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from course_utils import LivePlot

START = 1_700_000_000.0  # a run of some years ago


def line(rank: int, step: int, **values) -> str:
    return json.dumps({"rank": rank, "step": step, "time": START + step / 10, **values}) + "\n"


def write(folder, rank: int, *lines: str, mode: str = "a") -> None:
    folder.mkdir(exist_ok=True)
    with (folder / f"rank{rank}.jsonl").open(mode) as file:
        file.write("".join(lines))


def after(*moments):
    """An `until` that does one thing each time it is asked, and then is true."""
    left = list(moments)

    def until() -> bool:
        if left:
            left.pop(0)()
            return False
        return True

    return until


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def plot():
    return LivePlot("loss")


def test_a_run_of_last_week(runs, plot) -> None:
    for rank in range(3):
        write(runs, rank, *(line(rank, step, loss=step + rank) for step in range(41)))
    began = time.monotonic()
    assert plot.follow(runs) is None
    assert time.monotonic() - began < 60
    assert plot.data["loss"] == {rank: ([*range(41)], [step + rank for step in range(41)]) for rank in range(3)}
    assert plot._progress(0.0)[0] == "step 41 · 10.2 steps/s · took 4 s", "its own time"
    assert plot.data["steps/s"][0][1] == pytest.approx([10] * len(plot.data["steps/s"][0][1]))


def test_half_a_line_waits_for_its_other_half(runs, plot) -> None:
    whole = line(0, 1, loss=2.0)
    seen = []
    write(runs, 0, line(0, 0, loss=1.0), whole[:17])
    plot.follow(
        runs,
        until=after(
            lambda: None,
            lambda: seen.append(len(plot.data["loss"][0][0])),
            lambda: write(runs, 0, whole[17:-1]),
            lambda: seen.append(len(plot.data["loss"][0][0])),
            lambda: write(runs, 0, "\n"),
        ),
    )
    assert seen == [1, 1]
    assert plot.data["loss"][0] == ([0, 1], [1.0, 2.0])


def test_files_appear_late_and_ranks_are_lost(runs, plot) -> None:
    plot.follow(
        runs,
        until=after(
            lambda: None,
            lambda: [write(runs, rank, line(rank, 0, loss=1.0)) for rank in (0, 1)],
            lambda: write(runs, 0, line(0, 1, loss=0.5)),
            lambda: write(runs, 11, line(11, 0, loss=3.0)),
        ),
    )
    assert {rank: steps for rank, (steps, _) in plot.data["loss"].items()} == {0: [0, 1], 1: [0], 11: [0]}
    assert "step 2 ·" in plot._progress(0.0)[0], "the furthest rank counts"


def test_what_is_no_record_is_left_out(runs, plot) -> None:
    text = '{"rank": 0, "st\n[1]\nnull\n\n{"rank": "x", "step": 0, "loss": 1}\n{"step": 3, "loss": 2, "time": "now"}\n'
    write(runs, 4, line(4, 0, loss=1, note="text"), text, line(4, 9, loss=float("nan")))
    (runs / "rank5.jsonl").mkdir()
    (runs / "notes.txt").write_text("not of a rank\n")
    plot.follow(runs)
    assert plot.data.keys() <= {"loss", "steps/s"}
    assert list(plot.data["loss"]) == [4], "a record without a rank is of its file's"
    assert plot.data["loss"][4][0] == [0, 9], "a time is a number"


@pytest.mark.parametrize("there", [False, True])
def test_nothing_comes(runs, plot, capsys, there, monkeypatch) -> None:
    monkeypatch.setattr("course_utils.pictures.live.QUIET", 0.3)
    if there:
        write(runs, 0, line(0, 0, loss=1))
    plot.follow(runs, until=lambda: False)
    assert capsys.readouterr().out == f"Nothing new in {runs} for 0.3 s: the plot ends here. The run may go on.\n"
    assert bool(plot.data) is there


def test_an_interrupt_leaves_the_picture(runs, plot) -> None:
    write(runs, 0, line(0, 0, loss=1))

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plot.follow(runs, until=after(lambda: None, interrupt))
    assert plot.data["loss"][0] == ([0], [1])
    assert plot._ended is not None


def test_until_processes_have_ended_and_all_they_wrote_is_there(runs, plot) -> None:
    code = (
        "import pathlib, sys, time\n"
        f"folder = pathlib.Path({str(runs)!r}); folder.mkdir(exist_ok=True)\n"
        "with open(folder / f'rank{sys.argv[1]}.jsonl', 'a', buffering=1) as file:\n"
        "    for step in range(200):\n"
        "        print('{\"step\": %d, \"loss\": 1.0}' % step, file=file)\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(rank)]) for rank in range(2)]
    plot.follow(runs, until=processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert {rank: len(steps) for rank, (steps, _) in plot.data["loss"].items()} == {0: 200, 1: 200}
    done = subprocess.Popen([sys.executable, "-c", ""])
    LivePlot().follow(runs, until=done)
    assert done.returncode == 0


def test_while_a_rank_writes(runs, plot) -> None:
    def ranks() -> None:
        with (runs / "rank0.jsonl").open("w") as file:
            for step in range(2000):
                file.write(line(0, step, loss=step))
                if step % 7 == 0:
                    file.flush()  # in the middle of a line, now and then

    runs.mkdir()
    thread = threading.Thread(target=ranks)
    thread.start()
    plot.follow(runs, until=lambda: not thread.is_alive())
    assert plot.data["loss"][0][0] == [*range(2000)]


def test_a_second_run_in_one_plot(runs, plot) -> None:
    write(runs, 0, line(0, 0, loss=1))
    plot.follow(runs)
    plot.follow(runs)
    assert plot.data["loss"] == {0: ([0], [1])}
