"""Builds .venv, the course's environment, and .venv-xla for notebooks 12 to 14, or says in words why it cannot.

`make lab` and `make test` call it. Without .venv-xla everything but those notebooks runs, so that its absence is no
failure. Standard library only, and readable by any Python from 3.6 on: an old python3 gets a sentence, not a syntax
error.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.abspath(__file__))
LINUX = platform.system() == "Linux"
OLDEST = (3, 11)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU = os.environ.get("CPU") == "1"
PYTHON = os.environ.get("PYTHON")
PATH = ["python3.13", "python3.12", "python3.11", "python3.14"]


class Cannot(Exception):
    """Why an environment cannot be built; `lasting` when another try would end the same way."""

    def __init__(self, why: str, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


class Environment:
    """A folder that pip fills from a list of requirements, once."""

    def __init__(self, name: str, requirements: str, newest: "tuple[int, int]", needs: int, smaller: int) -> None:
        self.name, self.requirements, self.newest = name, requirements, newest
        self.needs, self.smaller = needs, smaller  # GB on disk while it is built, and with CPU=1
        self.folder = os.path.join(ROOT, name)
        self.python = os.path.join(self.folder, "bin", "python")
        self.stamp = os.path.join(self.folder, "ready")  # written last: a build that was interrupted has none
        self.failed = os.path.join(self.folder, "failed")
        self.log = os.path.join(self.folder, "install.log")

    def fingerprint(self) -> str:
        """What it is built from; the folder counts, because an environment that was moved does not work."""
        digest = hashlib.sha256(ROOT.encode())
        for name in (self.requirements, "pyproject.toml", "setup_env.py"):
            with open(os.path.join(ROOT, name), "rb") as file:
                digest.update(file.read())
        return digest.hexdigest()

    def ready(self) -> bool:
        return read(self.stamp) == self.fingerprint() and version(self.python) is not None

    def create(self, python: str, about: str) -> None:
        """An empty environment; what is there may be half of one, or of a Python that is gone."""
        needs, free = self.smaller if CPU else self.needs, shutil.disk_usage(ROOT).free / 1e9
        if free < needs:
            less = f" (or {self.smaller} GB with CPU=1: PyTorch's CPU build)" if needs > self.smaller else ""
            raise Cannot(f"{self.name} needs {needs} GB of disk{less}; {ROOT} has {free:.1f} GB free. "
                         "Make room, then try again.")
        number = say(version(python))
        print(f"Building {self.name} with Python {number}{about}", flush=True)
        command = [python, "-m", "venv", "--clear", self.folder]
        made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if made.returncode:
            print(made.stdout.decode(errors="replace"), file=sys.stderr)
            raise Cannot(f"{python} could not make a virtual environment. "
                         f"On Debian and Ubuntu: sudo apt install python{number}-venv")

    def install(self, *extra: str) -> None:
        """Let pip do its work, then leave the stamp."""
        began, mark = time.time(), self.fingerprint()
        for old in (self.stamp, self.failed):
            if os.path.exists(old):
                os.remove(old)
        command = [self.python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--log", self.log]
        command += ["--extra-index-url", CPU_INDEX] if CPU else []
        result = subprocess.run([*command, "-r", self.requirements, "-e", ".", *extra], cwd=ROOT)
        if result.returncode:
            why, lasting = self.reason()
            raise Cannot(f"{why} pip's words are above and, in full, in {self.log}.", lasting)
        write(self.stamp, mark)
        print(f"{self.name} is ready after {time.time() - began:.0f} s.", flush=True)

    def reason(self) -> "tuple[str, bool]":
        """Why pip failed, in a sentence, from its log, and whether it would again."""
        log = read(self.log) or ""
        log = log[log.rfind("Using pip"):]  # pip appends: only the last run counts
        if "No space left on device" in log or "Disk quota exceeded" in log:
            room = "Make room here and in the folder that TMPDIR names (without it /tmp), then try again."
            return f"The disk is full. {room}", False
        if "connection broken by" in log or "Read timed out" in log or "ProxyError" in log or "SSLError" in log:
            return "The packages could not be downloaded. Check the network (or proxy), then try again.", False
        if "No matching distribution found" in log:
            python = say(version(self.python))
            return f"A package has no build for this machine ({platform.platform()}, Python {python}).", True
        return "The packages could not be installed.", True


# Only on Linux does PyTorch bring its CUDA libraries.
COURSE = Environment(".venv", "requirements.txt", newest=(3, 14), needs=11 if LINUX else 3, smaller=3)
XLA = Environment(".venv-xla", "requirements-xla.txt", newest=(3, 13), needs=17, smaller=3)


def main() -> None:
    try:
        build_course()
    except Cannot as why:
        sys.exit(f"\n{why}")
    except KeyboardInterrupt:
        sys.exit("\nStopped before .venv was ready; the next try builds it.")
    try:
        build_xla()
    except Cannot as why:
        about = "PyTorch/XLA is left out, as with XLA=0; only notebooks 12 to 14 need it (Colab's TPU runtime has it)"
        print(f"{about}: {why}", flush=True)
    except KeyboardInterrupt:
        sys.exit("\nStopped before .venv-xla was ready; the next try builds it, and XLA=0 leaves it out.")
    finally:
        kernel(COURSE.folder, XLA.python if XLA.ready() else COURSE.python)


def build_course() -> None:
    if COURSE.ready():
        return
    if platform.system() == "Darwin" and platform.machine() == "x86_64":
        raise Cannot("PyTorch has no build for an Intel Python on macOS; Apple silicon needs an arm64 Python.")
    if read(COURSE.stamp) is None or version(COURSE.python) is None:
        COURSE.create(find_python(), ": some minutes, once.")
    COURSE.install()
    quiet_lab()


def build_xla() -> None:
    if os.environ.get("XLA") == "0" or XLA.ready():
        return
    if not LINUX or platform.machine() != "x86_64":
        raise Cannot(f"it has builds for Linux on x86-64 only; this is {platform.system()} on {platform.machine()}.")
    mark, _, why = (read(XLA.failed) or "").partition("\n")
    if mark == XLA.fingerprint():
        raise Cannot(f"{why} (That was the last try; rm -r .venv-xla lets make try again.)")
    if read(XLA.stamp) is None or version(XLA.python) is None:
        size = "1.8 GB" if CPU else "8 GB"
        XLA.create(python_for_xla(), f", for notebooks 12 to 14: some minutes and {size}, once (XLA=0 leaves it out).")
    try:
        XLA.install(*["torch_xla[tpu]"] * has_tpu())
    except Cannot as why:
        if why.lasting:
            write(XLA.failed, f"{XLA.fingerprint()}\n{why}")
        raise


def find_python() -> str:
    """The Python that PYTHON names, or the first that fits: the one running this, then those on the PATH."""
    found = {}
    for name in [PYTHON] if PYTHON else [sys.executable, *PATH]:
        found[name] = version(name)
        if found[name] and OLDEST <= found[name] <= COURSE.newest:
            return name
    needed = f"The course needs Python {say(OLDEST)} to {say(COURSE.newest)}"
    if PYTHON and not found[PYTHON]:
        raise Cannot(f"{needed}, and PYTHON={PYTHON} does not run.")
    name = PYTHON or sys.executable
    here = f"{name} is {say(found[name])}, too {'old' if found[name] < OLDEST else 'new'}"
    others = "" if PYTHON else ", and the PATH has no other"
    raise Cannot(f"{needed}; {here}{others}. "
                 "Install one (python.org, brew, apt, uv) or point to it: make lab PYTHON=/path/to/python3.13")


def python_for_xla() -> str:
    """The first that fits: the one that PYTHON names, .venv's own, the one running this, those on the PATH."""
    for name in [PYTHON or COURSE.python, COURSE.python, sys.executable, *PATH]:
        found = version(name)
        if found and OLDEST <= found <= XLA.newest:
            return name
    raise Cannot(f"it needs Python {say(OLDEST)} to {say(XLA.newest)}; .venv has {say(version(COURSE.python))} and the "
                 "PATH none that fits. make lab PYTHON=/path/to/python3.12 points to one.")


def has_tpu() -> bool:
    """Whether a TPU is here: then torch_xla needs its driver library too."""
    ask = "import sys; from pathlib import Path; from course_utils.machine.probe import tpu_chips\n"
    ask += "sys.exit(not tpu_chips(Path('/')))"
    return subprocess.run([COURSE.python, "-c", ask], cwd=ROOT).returncode == 0


def kernel(prefix: str, python: str) -> None:
    """The kernel that notebooks 12 to 14 name; without .venv-xla they open too, and their first cell says the rest."""
    folder = os.path.join(prefix, "share", "jupyter", "kernels", "xla")
    title = "PyTorch/XLA" if python == XLA.python else "PyTorch/XLA (not installed)"
    argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    about = {"argv": argv, "display_name": title, "language": "python", "metadata": {"debugger": True}}
    write(os.path.join(folder, "kernel.json"), json.dumps(about, indent=1))


def quiet_lab() -> None:
    """The first thing a newcomer sees is the notebook, not JupyterLab's question whether to fetch news."""
    file = os.path.join(COURSE.folder, "share", "jupyter", "lab", "settings", "overrides.json")
    settings = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    write(file, json.dumps(settings))


def version(python: str) -> "tuple[int, int] | None":
    """(3, 12) for a command that runs, else None."""
    code = "import sys; print('%d %d' % sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor = answer.stdout.split()
    return int(major), int(minor)


def say(number: "tuple[int, int]") -> str:
    return "{}.{}".format(*number)


def read(path: str) -> "str | None":
    if not os.path.exists(path):
        return None
    with open(path, errors="replace") as file:
        return file.read()


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
