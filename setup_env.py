"""Builds .venv, the course's environment, or says in a sentence why it cannot; `make lab` and `make test` call it.

Standard library only, and readable by any Python from 3.6 on: an old python3 gets a sentence, not a syntax error.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from typing import NoReturn

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "ready")  # written last: a build that was interrupted has none
LOG = os.path.join(VENV, "install.log")

OLDEST, NEWEST = (3, 11), (3, 14)  # what the pinned torch has builds for
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU = os.environ.get("CPU") == "1"
# GB on disk while it is built: downloads, pip's cache of them, .venv. On Linux PyTorch brings its CUDA libraries.
NEEDS = 3 if CPU or platform.system() != "Linux" else 11


def main() -> None:
    mark = fingerprint()
    if stamp() == mark and runs(VENV_PYTHON):
        return
    began = time.time()
    if platform.system() == "Darwin" and platform.machine() == "x86_64":
        stop("PyTorch has no build for this Python, which is an Intel one; Apple silicon needs an arm64 Python.")
    if stamp() is None or not runs(VENV_PYTHON):
        create(find_python())
    else:
        os.remove(STAMP)
    install()
    quiet_lab()
    with open(STAMP, "w") as file:
        file.write(mark)
    print(f"The course's environment is ready after {time.time() - began:.0f} s.", flush=True)


def stop(message: str) -> NoReturn:
    sys.exit("\n" + message)


def fingerprint() -> str:
    """What .venv was built from; the folder counts, because an environment that was moved does not work."""
    digest = hashlib.sha256(ROOT.encode())
    for name in ("requirements.txt", "pyproject.toml", "setup_env.py"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def stamp() -> "str | None":
    if not os.path.exists(STAMP):
        return None
    with open(STAMP) as file:
        return file.read()


def runs(python: str) -> bool:
    return version(python) is not None


def version(python: str) -> "tuple[int, int] | None":
    """(3, 12) for a command that runs, else None."""
    code = "import sys; print('%d %d' % sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor = answer.stdout.split()
    return int(major), int(minor)


def find_python() -> str:
    """The Python that PYTHON names, or the first that fits: the one running this, then those on the PATH."""
    asked = os.environ.get("PYTHON")
    found = {}
    for name in [asked] if asked else [sys.executable, "python3.13", "python3.12", "python3.11", "python3.14"]:
        found[name] = version(name)
        if found[name] and OLDEST <= found[name] <= NEWEST:
            return name
    needed = f"The course needs Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    if asked and not found[asked]:
        stop(f"{needed}, and PYTHON={asked} does not run.")
    name = asked or sys.executable
    here = f"{name} is {found[name][0]}.{found[name][1]}, too {'old' if found[name] < OLDEST else 'new'}"
    others = "" if asked else ", and the PATH has no other"
    stop(f"{needed}; {here}{others}. "
         "Install one (python.org, brew, apt, uv) or point to it: make lab PYTHON=/path/to/python3.13")


def create(python: str) -> None:
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < NEEDS:
        smaller = "" if NEEDS == 3 else " (or 3 GB with CPU=1, which takes PyTorch's CPU build)"
        stop(f"The course needs {NEEDS} GB of disk{smaller}; {ROOT} has {free:.1f} GB free. Make room, then try again.")
    say = ".".join(map(str, version(python)))
    print(f"Building .venv with Python {say}: some minutes, once.", flush=True)
    made = subprocess.run([python, "-m", "venv", "--clear", VENV], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode:
        print(made.stdout.decode(errors="replace"), file=sys.stderr)
        stop(f"{python} could not make a virtual environment. On Debian and Ubuntu: sudo apt install python{say}-venv")


def install() -> None:
    command = [VENV_PYTHON, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--log", LOG]
    command += ["--extra-index-url", CPU_INDEX] if CPU else []
    result = subprocess.run([*command, "-r", "requirements.txt", "-e", "."], cwd=ROOT)
    if result.returncode:
        stop(f"{reason()} pip's words are above and, in full, in {LOG}.")


def reason() -> str:
    """Why pip failed, in a sentence, from its log."""
    with open(LOG, errors="replace") as file:
        log = file.read()
    log = log[log.rfind("Using pip"):]  # pip appends: only the last run counts
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return "The disk is full. Make room here and in the folder that TMPDIR names (without it /tmp), then try again."
    if "connection broken by" in log or "Read timed out" in log or "ProxyError" in log or "SSLError" in log:
        return "The packages could not be downloaded. Check the network (or proxy), then try again."
    if "No matching distribution found" in log:
        return f"A package has no build for this machine ({platform.platform()}, Python {platform.python_version()})."
    return "The packages could not be installed."


def quiet_lab() -> None:
    """The first thing a newcomer sees is the notebook, not JupyterLab's question whether to fetch news."""
    folder = os.path.join(VENV, "share", "jupyter", "lab", "settings")
    os.makedirs(folder, exist_ok=True)
    settings = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    with open(os.path.join(folder, "overrides.json"), "w") as file:
        json.dump(settings, file)


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped before the environment was ready; the next try builds it afresh.")
