"""Every benchmark runs and prints its table; how fast things are is for a quiet machine, not for a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["launch", "faults", "live", "notebooks"])
def test_it_prints_its_table(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("\n| --- |") == 1
    assert "torch 2." in done.stdout  # the machine's description
<<<<<<< HEAD
    assert "nan" not in done.stdout


def test_the_limit_of_binder(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "binder.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    if "No memory cgroup can be made here" in done.stderr:
        pytest.skip("left out where no memory cgroup can be made: it needs Linux, and root")
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^\| two ranks \|.*\| 0 \| clean \|$", done.stdout, re.MULTILINE)


def test_the_readme_has_a_place_for_every_table() -> None:
    text = (FOLDER / "README.md").read_text()
    for name in [*NAMES, "binder", "cores"]:  # the last one has test_stress.py
        assert text.count(f"<!-- {name} -->\n") == text.count(f"<!-- /{name} -->") == 1
=======
>>>>>>> 7391190 (Four benchmarks in one table each; the stress of virtual cores is a test, its tables of targets are gone)
