"""`setup_env.py`: a sentence for every way in which an environment cannot be built, and no stamp on half of one.

Nothing is installed: a script in place of Python makes the folders, and says what pip would.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.fake_python import NOT_THERE, THERE, build, calls, furnish, kernel, python

LEFT_OUT = "PyTorch/XLA is left out, as with XLA=0; only the TPU and Lightning notebooks need it"
LEFT_OUT += " (Colab's TPU runtime has it): "


@pytest.fixture
def house(tmp_path: Path) -> Path:
    return furnish(tmp_path)


@pytest.mark.parametrize(("version", "word"), [("2.7", "old"), ("3.10", "old"), ("3.15", "new")])
def test_python_that_does_not_fit(house: Path, version: str, word: str) -> None:
    code, text = build(house, PYTHON=python(house, version))
    assert code == 1
    assert f"needs Python 3.11 to 3.14; {house / f'python-{version}'} is {version}, too {word}." in text


def test_python_that_is_not_there(house: Path) -> None:
    code, text = build(house, PYTHON="/nowhere/python3")
    assert code == 1
    assert "PYTHON=/nowhere/python3 does not run" in text


def needs(house: Path, name: str) -> None:
    """Let an environment need more than any disk."""
    script = house / "setup_env.py"
    lines = re.sub(rf"^({name} = .*)needs=\d+", r"\1needs=10**9", script.read_text(), flags=re.MULTILINE)
    assert "10**9" in lines
    script.write_text(lines)


def test_disk_is_too_small(house: Path) -> None:
    needs(house, "COURSE")
    code, text = build(house)
    assert code == 1
    assert ".venv needs 1000000000 GB of disk (or 3 GB with CPU=1: PyTorch's CPU build); " in text
    assert "GB free. Make room, then try again." in text
    assert not (house / ".venv/bin").exists()


def test_no_network_leaves_no_stamp(house: Path) -> None:
    """With a real pip."""
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}
    code, text = build(house, PYTHON=sys.executable, CPU="0", **offline)
    assert code == 1
    assert "The packages could not be downloaded. Check the network (or proxy), then try again." in text
    assert (house / ".venv" / "install.log").exists()
    assert not (house / ".venv" / "ready").exists()
    assert not (house / ".venv-xla").exists()


# ---- .venv-xla -------------------------------------------------------------------------------------------------------


def test_both_are_built_once(house: Path) -> None:
    code, text = build(house, PYTHON=python(house, "3.12"))
    assert code == 0
    about = "Building .venv-xla, for the TPU and Lightning notebooks (XLA=0 leaves it out), with Python 3.12: "
    assert about in text
    assert kernel(house) == THERE
    install = calls(house, "requirements-xla.txt")
    assert len(install) == 1
    assert ".venv-xla/bin/python -m pip install" in install[0]
    assert "tpu" not in install[0]
    assert build(house) == (0, "")
    assert not calls(house, "pip install")

    with (house / "requirements-xla.txt").open("a") as file:
        file.write("another==1.0\n")
    code, text = build(house)
    assert (code, "Building" in text) == (0, False)
    assert "Going on with .venv-xla" in text
    assert len(calls(house, "pip install")) == 1


def test_on_a_tpu_its_driver_is_installed_too(house: Path) -> None:
    build(house, PYTHON=python(house, "3.12"), TPU="1")
    assert calls(house, "requirements-xla.txt")[0].endswith("torch_xla[tpu]")


def test_left_out_when_asked(house: Path) -> None:
    code, text = build(house, PYTHON=python(house, "3.12"), XLA="0")
    assert code == 0
    assert "xla" not in text.lower()
    assert kernel(house) == NOT_THERE
    assert not (house / ".venv-xla").exists()
    build(house, PYTHON=python(house, "3.12"))
    assert kernel(house) == THERE
    build(house, XLA="0")
    assert kernel(house) == THERE, "what is there already stays"


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_no_build_for_the_machine(house: Path, system: str, machine: str) -> None:
    code, text = build(house, system=system, machine=machine, PYTHON=python(house, "3.12"))
    assert code == 0
    assert f"{LEFT_OUT}it has builds for Linux on x86-64 only; this is {system} on {machine}." in text
    assert kernel(house) == NOT_THERE


def test_no_python_for_xla(house: Path) -> None:
    new = python(house, "3.14")
    for name in ("python3.11", "python3.12", "python3.13", "python3.14"):
        (house / "path").mkdir(exist_ok=True)
        shutil.copy(new, house / "path" / name)
    script = house / "setup_env.py"
    script.write_text(script.read_text().replace("sys.executable", repr(new)))
    path = {"PATH": f"{house / 'path'}:/usr/bin:/bin"}
    code, text = build(house, PYTHON=new, **path)
    assert code == 0
    assert f"{LEFT_OUT}it needs Python 3.11 to 3.13; .venv has 3.14 and the PATH none that fits." in text
    assert kernel(house) == NOT_THERE

    calls(house, "")
    shutil.copy(python(house, "3.13"), house / "path" / "python3.13")
    code, text = build(house, **path)
    assert "with Python 3.13: " in text
    assert not calls(house, "requirements.txt"), ".venv is ready and stays as it is"
    assert kernel(house) == THERE


def test_no_room_for_xla(house: Path) -> None:
    needs(house, "XLA")
    code, text = build(house, PYTHON=python(house, "3.12"))
    assert code == 0
    assert f"{LEFT_OUT}.venv-xla needs 1000000000 GB of disk" in text
    assert kernel(house) == NOT_THERE


def test_no_network_for_xla_is_tried_again(house: Path) -> None:
    code, text = build(house, PYTHON=python(house, "3.12"), FAULT="connection broken by")
    assert code == 0
    assert f"{LEFT_OUT}The packages could not be downloaded." in text
    assert "    pip: " in text, "its own last words too"
    note = (house / ".venv/xla-build").read_text()
    assert note.startswith("PyTorch/XLA is left out: The packages could not be downloaded.")
    assert note.count("\n") == 1, "a second line would name a builder"
    assert kernel(house) == NOT_THERE
    assert not (house / ".venv-xla/ready").exists()
    code, text = build(house)
    assert kernel(house) == THERE
    assert not (house / ".venv/xla-build").exists()


def test_what_would_fail_again_is_not_tried_again(house: Path) -> None:
    code, first = build(house, PYTHON=python(house, "3.12"), FAULT="No matching distribution found")
    assert code == 0
    assert f"{LEFT_OUT}A package has no build for this machine" in first
    assert calls(house, "requirements-xla.txt")
    code, again = build(house)
    assert code == 0
    assert first.splitlines()[-1] in again
    assert "rm -r .venv-xla lets make try again" in again
    assert not calls(house, "pip install")
    shutil.rmtree(house / ".venv-xla")
    build(house)
    assert kernel(house) == THERE
