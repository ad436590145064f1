"""A run that the notebook did not start, in the notebook's plot: its ranks' files, whatever happens
to them.
"""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from course_utils import LivePlot

START = 1_700_000_000.0  # a run of some years ago


def line(rank: int, step: int, **values) -> str:
    return json.dumps({"rank": rank, "step": step, "time": START + step / 10, **values}) + "\n"


def write(folder, rank: int, *lines: str) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / f"rank{rank}.jsonl").open("a") as file:
        file.write("".join(lines))


def after(*moments):
    """A run of a process that does one thing each time it is asked, and then has ended."""
    left = list(moments)

    def poll() -> int | None:
        if not left:
            return 0
        left.pop(0)()
        return None

    return [SimpleNamespace(poll=poll)]


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def plot():
    return LivePlot("loss")


@pytest.fixture
def shown(plot, monkeypatch):
    """The texts of the pictures that a run ends in."""
    texts = []
    monkeypatch.setattr(
        plot, "_show", lambda now: texts.append(f"{plot!r} ({plot._progress(now)})")
    )
    return texts


def test_a_run_of_last_week(runs, plot, shown) -> None:
    for rank in range(3):
        write(runs, rank, *(line(rank, step, loss=step + rank) for step in range(41)))
    for _ in range(2):
        plot.follow(runs)
        assert plot.data["loss"] == {
            rank: ([*range(41)], [step + rank for step in range(41)]) for rank in range(3)
        }
    assert "step 41 · 10.2 steps/s · took 4 s" in shown[-1], "its own time"


def test_half_a_line_waits_one_cut_off_is_left_out_and_files_appear_late_and_ranks_are_lost(
    runs, plot, shown
) -> None:
    whole = line(0, 1, loss=2.0)
    seen = []
    plot.follow(
        runs,
        until=after(
            lambda: [write(runs, rank, line(rank, 0, loss=1.0)) for rank in (0, 1)],
            lambda: write(runs, 0, whole[:17]),
            lambda: seen.append(len(plot.data["loss"][0][0])),
            lambda: write(runs, 0, whole[17:-1]),
            lambda: seen.append(len(plot.data["loss"][0][0])),
            lambda: write(runs, 0, "\n", '{"rank": 0, "st' + whole),
            lambda: write(runs, 11, line(11, 0, loss=3.0)),
        ),
    )
    assert seen == [1, 1]
    assert plot.data["loss"] == {0: ([0, 1], [1.0, 2.0]), 1: ([0], [1.0]), 11: ([0], [3.0])}
    assert "step 2 ·" in shown[-1], "the furthest rank counts"


def test_lines_and_files_of_other_programs_are_left_out(runs, plot, shown) -> None:
    others = ['{"event": "checkpoint"}', "[1, 2]", "null", '{"rank": 0, "step": "a", "time": 0.0}']
    write(runs, 0, *(f"{other}\n" for other in others), line(0, 5, loss=1.0))
    (runs / "old.jsonl").mkdir()
    plot.follow(runs, until=subprocess.Popen([sys.executable, "-c", ""]))
    assert plot.data == {"loss": {0: ([5], [1.0])}}
    assert shown[-1] == "curves: loss 1 (step 6)", "one record has no rate"


def test_an_interrupt_leaves_the_picture(runs, plot, shown) -> None:
    write(runs, 0, line(0, 0, loss=1))

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plot.follow(runs, until=after(lambda: None, interrupt))
    assert plot.data["loss"][0] == ([0], [1])
    assert shown[-1].startswith("curves: loss 1 ")


def test_it_says_when_nothing_came(runs, plot) -> None:
    with pytest.warns(UserWarning, match=f"nothing came from {runs}: there is no such folder"):
        plot.follow(runs)
    for text in ("", '{"event": "start"}\n'):
        write(runs, 0, text)
        with pytest.warns(UserWarning, match=r"there is no \*.jsonl file with a record"):
            plot.follow(runs)
