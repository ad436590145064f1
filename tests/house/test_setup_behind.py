""".venv-xla is built behind JupyterLab: notebooks read how far it is, it ends when Lab does, and two never meet."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_python import NOT_THERE, THERE, build, calls, furnish, kernel, python, surroundings

HERE = platform.system(), platform.machine()
pytestmark = pytest.mark.skipif(HERE != ("Linux", "x86_64"), reason=".venv-xla has builds for Linux on x86-64 only")


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """With .venv built."""
    folder = furnish(tmp_path)
    code, text = build(folder, "course", PYTHON=python(folder, "3.12"))
    assert (code, "xla" in text) == (0, False)
    assert kernel(folder) == NOT_THERE
    return folder


@pytest.fixture
def lab(house: Path):
    """Starts what make lab starts, and ends it."""
    started = []

    def start(**environment: str) -> subprocess.Popen:
        command = [house / ".venv/bin/python", "setup_env.py", "lab"]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, cwd=house, env=surroundings(environment), **pipe))
        return started[-1]

    yield start
    for program in started:
        program.kill()
        program.wait()


def wait_for(what: Callable[[], object], seconds: float = 60) -> object:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, what
        time.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    """Running; what has ended and waits for a parent to ask is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def building(house: Path) -> list[int]:
    """The build, its pip and pip's child, once all three are there."""
    note, hanging = house / ".venv/xla-build", house / "hanging"
    wait_for(lambda: note.exists() and hanging.exists() and len(hanging.read_text().split()) == 2)
    sentence, builder = note.read_text().splitlines()
    assert sentence.startswith("PyTorch/XLA is being built: ")
    assert sentence.endswith(" s.")
    return [int(builder), *map(int, hanging.read_text().split())]


def test_the_kernel_changes_when_it_is_ready(house: Path, lab: Callable) -> None:
    gate = house / "gate"
    program = lab(GATE=str(gate))
    wait_for((house / ".venv/xla-build").exists)
    assert kernel(house) == NOT_THERE
    gate.touch()
    wait_for(lambda: kernel(house) == THERE)
    wait_for(lambda: not (house / ".venv/xla-build").exists())
    assert program.poll() is None, "JupyterLab runs on"
    assert len(calls(house, "-m jupyterlab")) == 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_lab_and_goes_on_with_the_next(house: Path, lab: Callable, how: signal.Signals) -> None:
    program = lab(FAULT="hang")
    pids = building(house)
    assert os.getpriority(os.PRIO_PROCESS, pids[1]) == 19
    program.send_signal(how)
    wait_for(lambda: not any(map(alive, pids)))
    assert not (house / ".venv/xla-build").exists()
    assert not (house / ".venv-xla/tmp").exists()

    calls(house, "")
    lab()
    wait_for(lambda: kernel(house) == THERE)
    assert not calls(house, "-m venv"), "what the first one made is kept"


def test_a_build_that_was_killed_takes_its_pip_along(house: Path, lab: Callable) -> None:
    lab(FAULT="hang")
    builder, pip, child = building(house)
    os.kill(builder, signal.SIGKILL)
    wait_for(lambda: not alive(pip))
    os.kill(child, signal.SIGKILL)  # only what pip started is beyond reach
    assert "Going on with .venv-xla" in build(house)[1]
    assert kernel(house) == THERE


def test_two_builds_never_meet(house: Path, lab: Callable) -> None:
    first = lab(FAULT="hang")
    pids = building(house)
    second = lab()
    said = wait_for(second.stdout.readline)
    assert said == "Another make is building .venv-xla; JupyterLab does not wait.\n"
    assert (house / "calls").read_text().count("-m pip") == 2, ".venv's, and the first one's"
    first.kill()
    wait_for(lambda: kernel(house) == THERE)
    assert not any(map(alive, pids))
    assert (house / "calls").read_text().count("-m pip") == 3


def test_make_test_waits(house: Path, lab: Callable) -> None:
    gate = house / "gate"
    lab(GATE=str(gate))
    wait_for((house / ".venv/xla-build").exists)
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    second = subprocess.Popen([sys.executable, "setup_env.py"], cwd=house, env=surroundings({}), **pipe)
    assert second.stdout.readline() == "Another make is building .venv-xla; this one waits for it, 0 s.\n"
    gate.touch()
    assert second.communicate(timeout=60) == ("", None)
    assert second.returncode == 0
    assert kernel(house) == THERE


def test_a_line_for_each_phase_and_none_for_the_rest(house: Path) -> None:
    words = """
Collecting torch==2.9.0
  Downloading http://localhost/torch-2.9.0%2Bcpu-cp311-cp311-linux_x86_64.whl (184.4 MB)
Collecting numpy
  Downloading numpy-2.4.6-cp311-cp311-linux_x86_64.whl (16.4 MB)
Installing collected packages: mpmath, numpy, torch
"""
    code, text = build(house, WORDS=words)
    assert code == 0
    lines = [line.rpartition(", ")[0] for line in text.splitlines() if line.startswith(".venv-xla: ")]
    assert lines[-1] == ".venv-xla: installing 3 packages, 201 MB fetched so far"
    assert "Collecting" not in text
    assert "201 MB fetched." in text
    assert words in (house / ".venv-xla/install.log").read_text()
