"""`make grade`: finished notebooks become a table, whatever stands in them."""

import csv
import inspect
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

from course_utils import check
from course_utils.checks import all_exercises
from course_utils.checks.learner import imports
from tests.files import NOTEBOOKS, ROOT
from tools import grade

BALANCE = "10_model_parallel"


def published(name: str) -> str:
    solution = all_exercises()[name].published
    return "\n".join([*imports(solution, {}), inspect.getsource(solution)])


def write(path: Path, answers: dict[str, str]) -> None:
    """The notebook of the course whose name is in the path's, with these answers."""
    (notebook,) = [one for one in NOTEBOOKS if one.stem in path.stem]
    page = nbformat.read(notebook, 4)
    for cell in page.cells:
        for name, answer in answers.items():
            if f"def {name}(" in cell.source and "exercise" in cell.metadata.get("tags", []):
                cell.source = answer
    path.parent.mkdir(exist_ok=True)
    nbformat.write(page, path)


def graded(folder: Path, *options: str) -> tuple[str, dict[str, dict[str, str]]]:
    """What is printed, and the rows of grades.csv by student."""
    command = [sys.executable, "-m", "tools.grade", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert not done.returncode, done.stderr
    with (folder / "grades.csv").open() as file:
        return done.stdout, {row.pop("student"): row for row in csv.DictReader(file)}


def test_a_class(tmp_path):
    answers = {
        "ada": {name: published(name) for name in ("balance", "idle_shares")},
        "bo": {
            "balance": "def balance(costs, stages):\n    return [1] * stages",
            "idle_shares": "def idle_shares(spans)\n    return",
        },
        "cy": {"balance": "import os\nGONE = os._exit(3)\ndef balance(costs, stages): return GONE"},
    }
    for student, given in answers.items():
        write(tmp_path / student / f"{BALANCE}.ipynb", given)
    write(tmp_path / "flo_08_sharding.ipynb", {"zero_bytes": published("zero_bytes")})
    (tmp_path / "gus_08_sharding.ipynb").write_text('{"cells": [')
    printed, rows = graded(tmp_path)
    assert rows["gus"]["08 zero_bytes"] == "The file is no notebook."
    balance = {student: row["10 balance"] for student, row in rows.items()}
    assert (balance["ada"], rows["ada"]["10 idle_shares"]) == ("solved", "solved")
    assert balance["bo"].startswith("balance([")
    assert balance["cy"] == "It ended the kernel."
    assert rows["bo"]["10 idle_shares"].startswith("SyntaxError")
    assert rows["cy"]["10 idle_shares"] == "not yet"
    assert (rows["flo"]["08 zero_bytes"], rows["flo"]["08 shard_optimizer"]) == (
        "solved",
        "not yet",
    )
    assert (balance["flo"], rows["ada"]["08 zero_bytes"]) == ("", "")
    line = next(line for line in printed.splitlines() if line.startswith(" ada"))
    assert line.split()[1:] == [".", ".", "✓", "✓", "2", "of", "4"]


def test_a_cell_that_never_ends(tmp_path):
    """Nor hears an interrupt; it waits, because the tests beside it need the core."""
    forever = """import signal
WOKEN = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.pause()
def balance(costs, stages): return WOKEN
"""
    write(tmp_path / f"{BALANCE}.ipynb", {"balance": forever})
    _, rows = graded(tmp_path, "--seconds=20")
    assert rows[tmp_path.name]["10 balance"] == "It had not finished after 20 s."


@pytest.mark.slow
def test_published_solutions_give_a_full_table_and_empty_notebooks_an_empty_one(tmp_path):
    for notebook in NOTEBOOKS:
        page = nbformat.read(notebook, 4)
        if page.metadata.kernelspec.name == "xla" and not find_spec("torch_xla"):
            continue
        names = grade.exercises(grade.code(page))
        write(tmp_path / "full" / notebook.name, {name: published(name) for name in names})
        write(tmp_path / "empty" / notebook.name, {})
    _, rows = graded(tmp_path)
    assert {*rows["full"].values()} == {"solved"}
    assert "solved" not in rows["empty"].values()


def test_what_is_handed_out_has_no_outputs():
    subprocess.run(["make", "-s", "handout"], cwd=ROOT, check=True)
    for notebook in NOTEBOOKS:
        page = nbformat.read(ROOT / "build" / "handout" / notebook.name, 4)
        assert not any(cell.get("outputs") for cell in page.cells)


def test_a_class_may_keep_its_solutions(monkeypatch, capsys):
    monkeypatch.setenv("COURSE_SOLUTIONS", "0")
    assert "solution" not in check.balance(lambda costs, stages: [])._repr_html_()
    check.balance.solution()
    assert capsys.readouterr().out.endswith("Your teacher has the solution.\n")
