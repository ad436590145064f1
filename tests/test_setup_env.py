"""`setup_env.py`: a sentence for every way in which building .venv can fail, and no stamp on half an environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of what .venv is built from, in a folder with a space in its name."""
    folder = tmp_path / "a course"
    folder.mkdir()
    for name in ("setup_env.py", "Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def python(folder: Path, version: str) -> str:
    """A stand-in for an interpreter of some version: it answers the one question it is asked."""
    path = folder / f"python-{version}"
    path.write_text(f"#!/bin/sh\necho {version.replace('.', ' ')}\n")
    path.chmod(0o755)
    return str(path)


def build(folder: Path, **environment: str) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "MAKE"))}
    done = subprocess.run(
        [sys.executable, "setup_env.py"],
        cwd=folder, env=clean | environment, capture_output=True, text=True, timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("version", "word"), [("2.7", "old"), ("3.10", "old"), ("3.15", "new")])
def test_python_that_does_not_fit(house: Path, version: str, word: str) -> None:
    code, text = build(house, PYTHON=python(house, version))
    assert code == 1
    assert f"needs Python 3.11 to 3.14; {house / f'python-{version}'} is {version}, too {word}." in text
    assert "Traceback" not in text


def test_python_that_is_not_there(house: Path) -> None:
    code, text = build(house, PYTHON="/nowhere/python3")
    assert code == 1
    assert "PYTHON=/nowhere/python3 does not run" in text


def test_disk_is_too_small(house: Path) -> None:
    script = house / "setup_env.py"
    script.write_text(re.sub("^NEEDS = .*$", "NEEDS = 10**9", script.read_text(), flags=re.MULTILINE))
    code, text = build(house)
    assert code == 1
    assert "GB of disk" in text
    assert "GB free. Make room, then try again." in text
    assert not (house / ".venv").exists()


def test_no_network_leaves_no_stamp(house: Path) -> None:
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}
    code, text = build(house, CPU="", **offline)
    assert code == 1
    assert "The packages could not be downloaded. Check the network (or proxy), then try again." in text
    assert (house / ".venv" / "install.log").exists()
    assert not (house / ".venv" / "ready").exists()
