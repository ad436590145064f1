"""A copy of what the environments are built from, and a script in place of Python that makes folders and plays pip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
COPIED = ("setup_env.py", "setup", "Makefile", "requirements.txt", "requirements-xla.txt", "pyproject.toml")

# The machine that setup_env.py is told it runs on.
RUN = """
import platform, runpy, sys
platform.system, platform.machine = lambda: {system!r}, lambda: {machine!r}
from setup import torch_build
if {driver!r} is not None:
    torch_build.driver = lambda: {driver!r}
torch_build.AMD, torch_build.INTEL = {amd!r}, "/nowhere"
sys.argv = ["setup_env.py", *{words!r}]
runpy.run_path("setup_env.py", run_name="__main__")
"""

# An interpreter of some version, as far as setup_env.py asks for one. It runs setup_env.py itself with a real one.
PYTHON = """#!{python} -IS
import os, shutil, subprocess, sys, time
asked = sys.argv[1:]
with open({house!r} + "/calls", "a") as file:
    print(*sys.argv, file=file)
if asked[0].endswith("setup_env.py"):
    os.execv({python!r}, [{python!r}, *asked])
elif "version_info" in asked[-1]:
    print({version!r})
elif "tpu_chips" in asked[-1]:
    sys.exit("TPU" not in os.environ)
elif asked[:2] == ["-m", "venv"]:
    os.makedirs(asked[-1] + "/bin", exist_ok=True)
    shutil.copy(sys.argv[0], asked[-1] + "/bin/python")
    pip = asked[-1] + "/lib/python{major_minor}/site-packages/pip-1.dist-info"
    os.makedirs(pip, exist_ok=True)
    open(pip + "/RECORD", "w").write("pip-1.dist-info/INSTALLER,,")
elif asked[:2] == ["-m", "pip"]:
    fault = os.environ.get("FAULT") if "requirements-xla.txt" in asked else None
    print(os.environ.get("WORDS", ""), fault, flush=True)
    if fault == "hang":
        child = subprocess.Popen(["sleep", "600"])
        with open({house!r} + "/hanging", "w") as file:
            print(os.getpid(), child.pid, file=file)
        time.sleep(600)
    while "GATE" in os.environ and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.05)
    sys.exit(bool(fault))
elif asked[:2] == ["-m", "jupyterlab"]:
    time.sleep(600)
"""
THERE = ("PyTorch/XLA", ".venv-xla")
NOT_THERE = ("PyTorch/XLA (not installed)", ".venv")


def furnish(folder: Path) -> Path:
    """A space in its name, as in some home folders."""
    folder = folder / "a course"
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)
    return folder


def python(folder: Path, version: str) -> str:
    path = folder / f"python-{version}"
    numbers = {"version": version.replace(".", " "), "major_minor": version}
    path.write_text(PYTHON.format(python=sys.executable, house=str(folder), **numbers))
    path.chmod(0o755)
    return str(path)


def surroundings(environment: dict[str, str]) -> dict[str, str]:
    """Without what this test run was told, and with no index of CPU builds but one that a test brings."""
    names = ("PIP_", "PYTHON", "MAKE", "XLA", "CPU", "TORCH_CPU_INDEX")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return clean | {"TORCH_CPU_INDEX": "http://127.0.0.1:9/cpu", "no_proxy": "127.0.0.1"} | environment


def build(
    folder: Path, *words: str, system: str = "Linux", machine: str = "x86_64", driver: bool | None = False,
    amd: str = "/nowhere", **environment: str,
) -> tuple[int, str]:
    about = {"system": system, "machine": machine, "driver": driver, "amd": amd, "words": words}
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(**about)],
        cwd=folder, env=surroundings(environment), capture_output=True, text=True, timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def kernel(folder: Path) -> tuple[str, str]:
    """What the kernel of the XLA notebooks is called, and the environment it runs in."""
    about = json.loads((folder / ".venv/share/jupyter/kernels/xla/kernel.json").read_text())
    assert about["argv"][1:] == ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return about["display_name"], Path(about["argv"][0]).relative_to(folder).parts[0]


def calls(folder: Path, word: str) -> list[str]:
    """What was asked of the interpreters since the last question."""
    said = (folder / "calls").read_text().splitlines()
    (folder / "calls").write_text("")
    return [line for line in said if word in line]
