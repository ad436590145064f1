"""The reader's board: what is noted of a run, where, and what the table says."""

import re

import pytest

from course_utils import my_board
from course_utils.pictures import board


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A notebook whose board lies in a file of its own."""
    monkeypatch.setattr(board, "shell", lambda: object())
    monkeypatch.setattr(board, "_session", [])
    monkeypatch.setenv("COURSE_BOARD", str(tmp_path / "deep" / "board.jsonl"))
    monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/notebooks/06_ddp.ipynb")
    return tmp_path / "deep" / "board.jsonl"


def test_of_each_kind_of_run_the_last_is_shown_in_the_next_session_too(file, monkeypatch):
    board.note("train", {"loss": 3.0}, on="4 ranks, cpu", seconds=1.5)
    assert not file.exists(), "nobody has asked for it"
    assert repr(my_board()).startswith("1 run, kept in ")
    for loss in (2.0, 1.25):
        board.note("train", {"loss": loss}, on="4 ranks, cpu", seconds=1.5)
    board.note("train", {"loss": 3.5}, on="2 ranks, cpu")
    board.note("_of_a_check", {"loss": 1.0})
    with file.open("a") as lines:  # cut off, or of another version
        lines.write('{"name": "cut o\nnull\n{"name": "x", "at": 1, "curves": {}}\n')
    monkeypatch.setattr(board, "_session", [])
    lines = repr(my_board()).splitlines()
    assert lines[0].startswith("2 runs, kept in ")
    assert [line.split()[:2] for line in lines[2:]] == [["06_ddp", "train"]] * 2
    assert "1.5 s" in lines[2]
    assert "loss 1.25" in lines[2]


def test_switched_off_or_on_a_disk_that_refuses_only_the_session_is_known(file, monkeypatch):
    file.parent.write_text("a file where the folder should be")
    board.note("train", {"loss": 1.0})
    assert repr(my_board()).startswith("1 run, of this session only")
    monkeypatch.setenv("COURSE_BOARD", "0")
    assert repr(my_board()).startswith("1 run, of this session only")
    monkeypatch.delenv("COURSE_BOARD")
    assert board._file().parts[-2:] == ("course_utils", "board.jsonl"), (
        "else in the user's own folder"
    )


def test_in_a_real_kernel(kernel, tmp_path):
    kernel.run(f"os.environ['COURSE_BOARD'] = {str(tmp_path / 'board.jsonl')!r}")
    kernel.run("my_board()")
    for _ in range(2):
        kernel.run("def job():\n    report(loss=1.5)\n\nlaunch(job, ranks=2, device='cpu')")
    kernel.run(
        "plot = LivePlot('loss', title='By hand')\nfor _ in range(3): plot.update(loss=1.0)\nplot.close()"
    )
    kernel.run("os.environ['COURSE_BOARD'], board = '0', repr(my_board())")
    assert len((tmp_path / "board.jsonl").read_text().splitlines()) >= 3
    assert re.search(
        r"job +2 ranks, cpu .* loss 1\.5 .*\n +By hand .* loss 1 ", kernel.run("print(board)").text
    )
