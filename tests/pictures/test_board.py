"""The reader's board: what is noted of a run, where, and what the table and the page say."""

import re

import pytest

from course_utils import LivePlot, my_board
from course_utils.pictures import board, live, screen
from tests.kernel import Kernel

HOSTILE = '<script>alert("x")</script>'


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A notebook whose board lies in a file of its own."""
    monkeypatch.setattr(board, "shell", lambda: object())
    monkeypatch.setattr(board, "_session", [])
    monkeypatch.setenv("COURSE_BOARD", str(tmp_path / "deep" / "board.jsonl"))
    monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/notebooks/06_ddp.ipynb")
    return tmp_path / "deep" / "board.jsonl"


def test_of_each_kind_of_run_the_last_is_shown_in_the_next_session_too(file, monkeypatch):
    for loss in (2.0, 1.25):
        board.note("train", {"loss": loss}, on="4 ranks, cpu", seconds=1.5)
    board.note("train", {"loss": 3.5}, on="2 ranks, cpu")
    monkeypatch.setattr(board, "_session", [])
    lines = repr(my_board()).splitlines()
    assert lines[0].startswith("2 runs, kept in ")
    assert [line.split()[:2] for line in lines[2:]] == [["06_ddp", "train"]] * 2
    assert "loss 1.25" in lines[2]
    assert "1.5 s" in lines[2]
    assert "loss 2" not in repr(my_board())


def test_what_is_no_record_is_left_out(file):
    board.note("train", {"loss": 1.0})
    with file.open("a") as lines:
        lines.write('{"name": "cut o\n[1, 2]\n3\nnull\n{"name": "x", "at": 1, "curves": {}}\n\x00\n')
    assert repr(my_board()).startswith("1 run, ")


def test_switched_off_nothing_is_written(file, monkeypatch):
    monkeypatch.setenv("COURSE_BOARD", "0")
    board.note("train", {"loss": 1.0})
    assert not file.exists()
    assert repr(my_board()).startswith("1 run, of this session only"), "this session's is known all the same"


def test_by_default_the_file_is_in_the_users_own_folder(monkeypatch):
    monkeypatch.delenv("COURSE_BOARD")
    assert board._file().parts[-2:] == ("course_utils", "board.jsonl")


def test_a_disk_that_refuses_spoils_no_run(file):
    file.parent.write_text("a file where the folder should be")
    board.note("train", {"loss": 1.0})
    assert "train" in repr(my_board())


def test_outside_a_notebook_and_in_checks_nothing_is_noted(file, monkeypatch):
    board.note("_there_and_back", {"loss": 1.0})
    monkeypatch.setattr(board, "shell", lambda: None)
    board.note("train", {"loss": 1.0})
    assert repr(my_board()).startswith("0 runs")
    assert not file.exists()


def test_a_live_plot_is_noted_once(file, monkeypatch):
    for module in (live, screen):
        monkeypatch.setattr(module, "shell", lambda: None)
    plot = LivePlot("loss", title="By hand")
    for step in range(5):
        plot.update(step, loss=1 / (1 + step))
    plot.close()
    plot.close()
    (record,) = board._session
    assert (record["name"], record["lasts"]["loss"]) == ("By hand", 0.2)


def test_the_page_stands_alone(file, tmp_path):
    board.note(HOSTILE, {HOSTILE: float("nan")}, title=HOSTILE, on=HOSTILE, seconds=0.2)
    page = my_board().save(tmp_path / "board.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "color-scheme: light dark" in page
    assert not re.search(r"<script|src=|href=|https?:", page)
    assert "200 ms" in page


def test_in_a_real_kernel(tmp_path):
    kernel = Kernel()
    try:
        kernel.run(f"os.environ['COURSE_BOARD'] = {str(tmp_path / 'board.jsonl')!r}")
        for _ in range(2):
            kernel.run("def job():\n    report(loss=1.5)\n\nlaunch(job, ranks=2, device='cpu')")
        kernel.run("try:\n    launch(lambda: 1 / 0, ranks=1)\nexcept RankError:\n    pass")
        (shown,) = kernel.run("my_board()").displays
    finally:
        kernel.close()
    assert len((tmp_path / "board.jsonl").read_text().splitlines()) == 2
    assert shown["text/plain"].splitlines()[0].startswith("1 run, kept in ")
    assert re.search(r"job +2 ranks, cpu .* loss 1\.5 ", shown["text/plain"])
