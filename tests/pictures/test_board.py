"""The reader's board: what is kept of a run, where, how much of it; and what the table and the page say."""

import json
import re
import types

import pytest

from course_utils import CourseError, LivePlot, launch, my_board, report
from course_utils.pictures import kept, live, screen
from tests.kernel import Kernel

CURVE = {"loss": ([0, 1, 2], [3.0, 2.0, 1.5])}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A notebook whose board lies in a file of its own."""
    events = types.SimpleNamespace(register=lambda *_: None, unregister=lambda *_: None)
    shell = types.SimpleNamespace(user_ns={}, execution_count=1, events=events)
    for module in (kept, live, screen):
        monkeypatch.setattr(module, "shell", lambda: shell)
    monkeypatch.setenv("COURSE_LIVE", "0")
    monkeypatch.setattr(kept, "_session", {})
    monkeypatch.setattr(kept, "_problem", "")
    monkeypatch.setenv("COURSE_BOARD", str(tmp_path / "deep" / "board.jsonl"))
    monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/notebooks/06_ddp.ipynb")
    return tmp_path / "deep" / "board.jsonl"


def names():
    return [record["name"] for record in kept.kept()]


def new_session(monkeypatch):
    monkeypatch.setattr(kept, "_session", {})


def test_a_run_is_kept_for_the_next_session(file, monkeypatch):
    kept.keep("train", CURVE, ranks=4, device="cpu", seconds=1.5)
    new_session(monkeypatch)
    (record,) = kept.kept()
    assert record["notebook"] == "06_ddp"
    assert record["curves"] == {"loss": [[0, 1, 2], [3.0, 2.0, 1.5]]}
    assert (record["ranks"], record["device"], record["seconds"]) == (4, "cpu", 1.5)


def test_running_again_does_not_double(file, monkeypatch):
    for loss in (2.0, 1.0):
        kept.keep("train", {"loss": ([0], [loss])}, ranks=4, device="cpu")
        new_session(monkeypatch)
    kept.keep("train", CURVE, ranks=2, device="cpu")
    assert len(file.read_text().splitlines()) == 3
    last = {record["ranks"]: record["curves"]["loss"][1][-1] for record in kept.kept()}
    assert last == {4: 1.0, 2: 1.5}


def test_curves_are_thinned_and_their_last_value_stays(file):
    steps = list(range(10_001))
    kept.keep("train", {str(i): (steps, [step / 3 for step in steps]) for i in range(9)})
    (record,) = kept.kept()
    assert len(record["curves"]) == kept.METRICS
    xs, ys = record["curves"]["0"]
    assert len(xs) == len(ys) <= kept.POINTS + 1
    assert (xs[-1], ys[-1]) == (10_000, 3333)


def test_the_file_stays_small(file, monkeypatch):
    monkeypatch.setattr(kept, "LARGE", 2000)
    monkeypatch.setattr(kept, "MOST", 5)
    for number in range(100):
        kept.keep(f"job{number}", CURVE)
    assert file.stat().st_size < 4000
    assert len(kept._session) == 5
    assert names() == [f"job{number}" for number in range(95, 100)]


def test_what_is_no_record_is_left_out(file):
    kept.keep("train", CURVE)
    with file.open("a") as lines:
        lines.write('{"name": "cut o\n[1, 2]\n3\nnull\n{"name": "x", "at": "noon", "curves": {}}\n')
        lines.write('{"name": "x", "at": 1, "curves": {"loss": [[1, 2], [3]]}}\n{"at": 1, "curves": {}}\n\x00\n')
        lines.write('{"name": "x", "notebook": "", "at": 1, "curves": {"loss": [["a"], ["b"]]}}\n')
    assert names() == ["train"]
    assert "train" in repr(my_board())


def test_switched_off_nothing_is_written(file, monkeypatch):
    monkeypatch.setenv("COURSE_BOARD", "0")
    kept.keep("train", CURVE)
    assert not file.exists()
    assert names() == ["train"], "this session's is known all the same"
    assert "of this session only: COURSE_BOARD=0" in repr(my_board())


def test_by_default_the_file_is_in_the_users_own_folder(monkeypatch):
    monkeypatch.delenv("COURSE_BOARD")
    assert kept.place().parts[-2:] == ("course_utils", "board.jsonl")


def test_a_disk_that_refuses_is_said_on_the_board_only(file, monkeypatch):
    file.parent.write_text("a file where the folder should be")
    kept.keep("train", CURVE)
    assert names() == ["train"]
    assert "could not be kept" in repr(my_board())


def test_outside_a_notebook_and_in_checks_nothing_is_kept(file, monkeypatch):
    kept.keep("_there_and_back", CURVE)
    monkeypatch.setattr(kept, "shell", lambda: None)
    kept.keep("train", CURVE)
    assert names() == []
    assert not file.exists()


def test_nothing_to_show(file):
    assert repr(my_board()).startswith("No runs, kept in")
    assert "<table" not in my_board()._repr_html_()


def test_whatever_goes_wrong_nothing_is_raised(file):
    kept.keep("train", {"loss": ([0], ["no number"])})
    kept.keep("train", {"loss": object()})
    assert names() == []


def test_a_live_plot_is_kept_once(file):
    plot = LivePlot("loss", title="By hand")
    for step in range(5):
        plot.update(step, loss=1 / (1 + step))
    plot.close()
    plot.close()
    (record,) = kept.kept()
    assert (record["name"], record["curves"]["loss"][1][-1]) == ("By hand", 0.2)


def short():
    for step in range(3):
        report(step=step, loss=3 - step)


def test_a_launch_is_kept_under_its_functions_name(file, monkeypatch):
    monkeypatch.setattr(kept, "shell", lambda: None)
    launch(short, ranks=2, device="cpu")
    assert not file.exists(), "not from a script"
    monkeypatch.setattr(kept, "wanted", lambda name: True)
    monkeypatch.setattr(kept, "_notebook", lambda: "00_start_here")
    launch(short, ranks=2, device="cpu")
    (record,) = kept.kept()
    assert (record["name"], record["ranks"], record["unit"]) == ("short", 2, "rank")
    assert record["curves"]["loss"][1] == [3.0, 2.0, 1.0]


HOSTILE = '<script>alert("x")</script>'


@pytest.fixture
def page(file, tmp_path):
    kept.keep(HOSTILE, {HOSTILE: ([0, 1, 2], [1.0, float("nan"), 2.0])}, title=HOSTILE, ranks=1, device=HOSTILE,
              timeline=HOSTILE, seconds=0.2, sent=2_000_000)
    kept.keep("train", CURVE, ranks=4, unit="core", device="cpu")
    my_board().save(tmp_path / "board.html")
    return (tmp_path / "board.html").read_text()


def test_the_page_stands_alone(page):
    assert page.startswith("<!doctype html>")
    assert "color-scheme: light dark" in page
    assert not re.search(r"<script|src=|href=|https?:(?!//www\.w3\.org)", page)
    assert page.count("<svg") == page.count('role="img" aria-label=') == 2


def test_the_page_says_what_was_measured(page):
    for words in ("06_ddp", "train", "4 cores, cpu", "1.5", "200 ms", "rank 0 sent 2 MB", "from 3 to 1.5"):
        assert words in page


def test_a_place_that_cannot_be_written(file, tmp_path):
    with pytest.raises(CourseError, match="Give a file in a folder of yours"):
        my_board().save(tmp_path / "missing" / "board.html")


def test_a_record_is_a_line_of_json(file):
    kept.keep("two\nlines", CURVE)
    assert [json.loads(line)["name"] for line in file.read_text().splitlines()] == ["two\nlines"]


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
    assert shown["text/plain"].splitlines()[0].startswith("job · 2 ranks, cpu · ")
    assert shown["text/plain"].splitlines()[1].startswith("1 run, kept in ")
