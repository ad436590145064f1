"""`setup_env.py`: a sentence for every way in which an environment cannot be built, and no stamp on half of one.

Nothing is installed: a script in place of Python makes the folders, and says what pip would.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = "PyTorch/XLA is left out, as with XLA=0; only notebooks 12 to 14 need it (Colab's TPU runtime has it): "

# The machine that setup_env.py is told it runs on.
RUN = """
import platform, runpy
platform.system, platform.machine = lambda: {system!r}, lambda: {machine!r}
runpy.run_path("setup_env.py", run_name="__main__")
"""

# An interpreter of some version, as far as setup_env.py asks for one.
PYTHON = """#!{python} -IS
import os, shutil, sys
asked = sys.argv[1:]
with open({house!r} + "/calls", "a") as file:
    print(*sys.argv, file=file)
if "version_info" in asked[-1]:
    print({version!r})
elif "tpu_chips" in asked[-1]:
    sys.exit("TPU" not in os.environ)
elif asked[:2] == ["-m", "venv"]:
    shutil.rmtree(asked[-1], ignore_errors=True)
    os.makedirs(asked[-1] + "/bin")
    shutil.copy(sys.argv[0], asked[-1] + "/bin/python")
elif asked[:2] == ["-m", "pip"]:
    fault = os.environ.get("FAULT") if "requirements-xla.txt" in asked else None
    with open(asked[asked.index("--log") + 1], "a") as log:
        print("Using pip 99", fault, file=log)
    sys.exit(bool(fault))
"""
THERE = ("PyTorch/XLA", ".venv-xla")
NOT_THERE = ("PyTorch/XLA (not installed)", ".venv")


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of what the environments are built from, in a folder with a space in its name."""
    folder = tmp_path / "a course"
    folder.mkdir()
    for name in ("setup_env.py", "Makefile", "requirements.txt", "requirements-xla.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def python(folder: Path, version: str) -> str:
    path = folder / f"python-{version}"
    path.write_text(PYTHON.format(python=sys.executable, house=str(folder), version=version.replace(".", " ")))
    path.chmod(0o755)
    return str(path)


def build(folder: Path, *, system: str = "Linux", machine: str = "x86_64", **environment: str) -> tuple[int, str]:
    names = ("PIP_", "PYTHON", "MAKE", "XLA", "CPU")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(system=system, machine=machine)],
        cwd=folder, env=clean | environment, capture_output=True, text=True, timeout=120,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def kernel(folder: Path) -> tuple[str, str]:
    """What the kernel of notebooks 12 to 14 is called, and the environment it runs in."""
    about = json.loads((folder / ".venv/share/jupyter/kernels/xla/kernel.json").read_text())
    assert about["argv"][1:] == ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return about["display_name"], Path(about["argv"][0]).relative_to(folder).parts[0]


def calls(folder: Path, word: str) -> list[str]:
    """What was asked of the interpreters since the last question."""
    said = (folder / "calls").read_text().splitlines()
    (folder / "calls").write_text("")
    return [line for line in said if word in line]


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
    assert not (house / ".venv").exists()


def test_no_network_leaves_no_stamp(house: Path) -> None:
    """The one test with a real pip."""
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}
    code, text = build(house, PYTHON=sys.executable, **offline)
    assert code == 1
    assert "The packages could not be downloaded. Check the network (or proxy), then try again." in text
    assert (house / ".venv" / "install.log").exists()
    assert not (house / ".venv" / "ready").exists()
    assert not (house / ".venv-xla").exists()


# ---- .venv-xla -------------------------------------------------------------------------------------------------------


def test_both_are_built_once(house: Path) -> None:
    code, text = build(house, PYTHON=python(house, "3.12"))
    assert code == 0
    assert "Building .venv-xla with Python 3.12, for notebooks 12 to 14: some minutes and" in text
    assert "(XLA=0 leaves it out)" in text
    assert kernel(house) == THERE
    install = calls(house, "requirements-xla.txt")
    assert len(install) == 1
    assert ".venv-xla/bin/python -m pip install" in install[0]
    assert "tpu" not in install[0]
    assert build(house) == (0, "")
    assert not calls(house, "pip")

    with (house / "requirements-xla.txt").open("a") as file:
        file.write("another==1.0\n")
    code, text = build(house)
    assert (code, "Building" in text) == (0, False)
    assert len(calls(house, "pip")) == 1


def test_cpu_builds(house: Path) -> None:
    build(house, PYTHON=python(house, "3.12"), CPU="1")
    assert len(calls(house, "--extra-index-url")) == 2


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
    assert "Building .venv-xla with Python 3.13" in text
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
    assert kernel(house) == NOT_THERE
    assert not (house / ".venv-xla/ready").exists()
    code, text = build(house)
    assert kernel(house) == THERE


def test_what_would_fail_again_is_not_tried_again(house: Path) -> None:
    code, first = build(house, PYTHON=python(house, "3.12"), FAULT="No matching distribution found")
    assert code == 0
    assert f"{LEFT_OUT}A package has no build for this machine" in first
    assert calls(house, "requirements-xla.txt")
    code, again = build(house)
    assert code == 0
    assert first.splitlines()[-1] in again
    assert "rm -r .venv-xla lets make try again" in again
    assert not calls(house, "pip")
    shutil.rmtree(house / ".venv-xla")
    build(house)
    assert kernel(house) == THERE
