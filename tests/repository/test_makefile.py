"""How make builds the environments and opens the course: a script plays Python, pip, JupyterLab."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.files import ROOT
from tests.kernel import eventually, gone

PLAYER = """#!/bin/sh
echo "$0 $*" >> "$HOUSE/calls"
case "$0 $*" in
*version_info*) exit ${UNFIT:-0} ;;
*urllib*) [ -z "$SILENT" ] ;;
*-m\\ venv*) mkdir -p "$4/bin" "$4/share"; echo "$PWD/$4" > "$4/pyvenv.cfg"
    for name in python jupyter jupyter-trust jupyter-lab; do cp "$0" "$4/bin/$name"; done ;;
*/jupyter-lab*|*.venv-xla*install\\ -r*) [ ! -e "$HOUSE/hang" ] || exec sleep 600 ;;
esac
"""
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="nothing is built behind JupyterLab elsewhere"
)


@pytest.fixture
def house(tmp_path):
    """A checkout, as far as the Makefile needs it; a space in its name, as in some home folders."""
    folder = tmp_path / "a course"
    shutil.copytree(ROOT / "tools" / "jupyter", folder / "tools" / "jupyter")
    (folder / "tests").mkdir()
    pages = "requirements.txt", "requirements-xla.txt", "tests/requirements.txt"
    for name in ("Makefile", *pages):
        shutil.copy(ROOT / name, folder / name)
    (folder / "calls").touch()
    (tmp_path / "player").write_text(PLAYER)
    (tmp_path / "player").chmod(0o755)
    return folder


def start(house: Path, *words: str, **environment: str) -> subprocess.Popen:
    environment |= {"HOUSE": str(house)}
    for name, value in os.environ.items():
        if not name.startswith(("MAKE", "XLA", "CPU", "TORCH")):
            environment.setdefault(name, value)
    return subprocess.Popen(
        ["make", f"PYTHON={house.parent / 'player'}", *words],
        cwd=house,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def make(house: Path, *words: str, **environment: str) -> tuple[str, str]:
    """What it said, and the installations and environments that it asked for."""
    (house / "calls").write_text("")
    said, _ = start(house, *words, **environment).communicate(timeout=600)
    calls = (house / "calls").read_text().splitlines()
    return said, "\n".join(call for call in calls if "-m venv" in call or "install -r" in call)


def test_a_python_that_does_not_fit(house):
    assert "The course needs Python 3.11 to 3.14" in make(house, "course", UNFIT="1")[0]
    assert not (house / ".venv").exists()


@linux
def test_built_once_brought_up_to_date_and_built_again(house):
    calls = make(house, "env")[1]
    assert calls.count("venv --clear") == calls.count("install -r") == 2
    assert (house / ".venv/share/jupyter/kernels/xla/kernel.json").exists()
    assert make(house, "env") == ("", "")
    os.utime(house / "requirements-xla.txt")
    calls = make(house, "env")[1]
    assert "install -r requirements-xla.txt" in calls
    assert len(calls.splitlines()) == 1
    (house / ".venv/ready").unlink()  # as an interrupted build leaves it
    assert make(house, "env", "XLA=0")[1].count("venv --clear .venv\n") == 1
    moved = house.rename(house.parent / "moved")
    assert make(moved, "env")[1].count("venv --clear") == 2


@linux
def test_what_only_tests_need_is_no_part_of_the_course(house):
    make(house, "course")
    assert "tests/requirements.txt" not in (house / "calls").read_text()
    make(house, "env")
    assert (house / "calls").read_text().count("tests/requirements.txt") == 1


@linux
def test_the_cpu_build_of_pytorch(house):
    links = "--find-links https://mirror/cpu/torch/"
    mirror = "TORCH_CPU_INDEX=https://mirror/cpu"
    for word, silent, given in [("", "", 1), ("", "1", 0), ("CPU=1", "1", 1), ("CPU=0", "", 0)]:
        shutil.rmtree(house / ".venv-xla", ignore_errors=True)
        said, calls = make(house, "env", mirror, *word.split(), SILENT=silent)
        assert calls.splitlines()[-1].count(links) == given, (word, silent)
        assert ("does not answer" in said) == (silent == "1" and not word)


@linux
def test_the_build_behind_jupyterlab_ends_with_it_and_goes_on_at_the_next(house):
    (house / "hang").touch()
    lab = start(house, "lab")
    try:
        assert eventually(lambda: "requirements-xla.txt" in (house / "calls").read_text())
        ours = [one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == str(house)]
        (jupyter,) = psutil.Process(lab.pid).children()
        jupyter.kill()
        assert gone(ours) == []
    finally:
        lab.kill()
    assert not (house / ".venv-xla/ready").exists()
    (house / "hang").unlink()
    make(house, "lab")
    make(house, "env")
    assert (house / ".venv-xla/ready").exists()
