"""Builds .venv, the course's environment, and .venv-xla for the TPU and Lightning notebooks, or says why it cannot.

    setup_env.py              both, one after the other: make env, make test
    setup_env.py course       .venv only: the first step of make lab
    setup_env.py lab ...      JupyterLab with these options, and .venv-xla built behind it: the second step
    setup_env.py behind PID   that build; PID is JupyterLab's

Without .venv-xla everything but those notebooks runs, so that its absence is no failure. Standard library only, and
readable by any Python from 3.6 on: an old python3 gets a sentence, not a syntax error. The folder setup/ has the parts.
"""

import json
import os
import platform
import subprocess
import sys

from setup import process, torch_build
from setup.environment import OLDEST, PYTHON, ROOT, Cannot, Environment, say
from setup.process import read, remove, tell, version, write

LINUX = platform.system() == "Linux"
PATH = ["python3.13", "python3.12", "python3.11", "python3.14"]

# Only on Linux does PyTorch bring its CUDA libraries.
COURSE = Environment(".venv", "requirements.txt", newest=(3, 14), needs=11 if LINUX else 3, smaller=3)
XLA = Environment(".venv-xla", "requirements-xla.txt", newest=(3, 13), needs=17, smaller=3,
                  about=", for the TPU and Lightning notebooks (XLA=0 leaves it out),")
# How far .venv-xla is, for those notebooks: a sentence, and on a second line the builder's process id while it builds.
NOTE = os.path.join(COURSE.folder, "xla-build")


def main(words: "list[str]") -> None:
    if os.name == "nt":
        sys.exit("This needs Linux, macOS or WSL2. On Windows itself use pip, as README.md says.")
    process.unwind_when_ended()
    if "MAKELEVEL" in os.environ:  # make is the parent, and what is left of a make that was killed would go on unseen
        process.end_with_parent()
    what = words[0] if words else "all"
    if what == "lab":
        open_lab(words[1:])
    elif what == "behind":
        process.end_with_parent()
        process.give_way()
        if os.getppid() == int(words[1]):  # else JupyterLab ended before Linux was told to say so
            finish(behind=True)
    else:
        course()
        if what == "all":
            finish()


def course() -> None:
    try:
        build_course()
    except Cannot as why:
        sys.exit(f"\n{why}")
    except KeyboardInterrupt:
        sys.exit("\nStopped before .venv was ready; the next try goes on from here.")
    kernel(COURSE.folder, XLA.python if XLA.ready() else COURSE.python)


def open_lab(options: "list[str]") -> None:
    """This process becomes JupyterLab, and what it starts before is JupyterLab's child."""
    if LINUX:
        behind = [COURSE.python, os.path.join(ROOT, "setup_env.py"), "behind", str(os.getpid())]
        # In a session of its own: Ctrl-C is JupyterLab's, which asks whether it is meant.
        subprocess.Popen(behind, stdin=subprocess.DEVNULL, start_new_session=True)
    else:
        finish()  # no .venv-xla here, and nothing to end a child with its parent
    os.execv(COURSE.python, [COURSE.python, "-m", "jupyterlab", *options])


def finish(behind: bool = False) -> None:
    """What the course does not wait for: byte code, and .venv-xla."""
    try:
        with COURSE.compiling():
            xla(behind)
        with XLA.compiling():
            pass
    except KeyboardInterrupt:
        sys.exit("\nStopped; what is not ready yet goes on from here at the next try. XLA=0 leaves .venv-xla out.")


def xla(behind: bool) -> None:
    note = None
    try:
        build_xla(behind)
    except Cannot as why:
        about = "PyTorch/XLA is left out, as with XLA=0; only the TPU and Lightning notebooks need it"
        tell(f"{about} (Colab's TPU runtime has it): {why}")
        note = f"PyTorch/XLA is left out: {why}\n"
    finally:  # also when it was interrupted
        write(NOTE, note) if note else remove(NOTE)
        kernel(COURSE.folder, XLA.python if XLA.ready() else COURSE.python)


def build_course() -> None:
    if not COURSE.ready():
        if platform.system() == "Darwin" and platform.machine() == "x86_64":
            raise Cannot("PyTorch has no build for an Intel Python on macOS; Apple silicon needs an arm64 Python.")
        with COURSE.lock(behind=False) as lock:
            if not COURSE.ready():
                show = lambda progress, new: tell(f"{COURSE.name}: {progress}") if new else None  # noqa: E731
                COURSE.build(find_python, True, [], show, lock)
                quiet_lab()
    idle = torch_build.left_idle(COURSE.folder, read(os.path.join(ROOT, COURSE.requirements)))
    if idle:
        tell(idle)


def build_xla(behind: bool) -> None:
    if os.environ.get("XLA") == "0" or XLA.ready():
        return
    if not LINUX or platform.machine() != "x86_64":
        raise Cannot(f"it has builds for Linux on x86-64 only; this is {platform.system()} on {platform.machine()}.")

    def show(progress: object, new: bool) -> None:
        write(NOTE, f"PyTorch/XLA is being built: {progress}.\n{os.getpid()}\n")
        if new and not behind:
            tell(f"{XLA.name}: {progress}")

    with XLA.lock(behind) as lock:
        if XLA.ready():
            return
        mark, _, why = (read(XLA.failed) or "").partition("\n")
        if mark == XLA.fingerprint():
            raise Cannot(f"{why} (That was the last try; rm -r .venv-xla lets make try again.)")
        try:
            XLA.build(python_for_xla, False, ["torch_xla[tpu]"] * has_tpu(), show, lock)
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
    ask = "from course_utils.machine import tpu_chips; import sys"
    ask += "; sys.exit(not tpu_chips())"
    return subprocess.run([COURSE.python, "-c", ask], cwd=ROOT).returncode == 0


def kernel(prefix: str, python: str) -> None:
    """The kernel that the XLA notebooks name; without .venv-xla they open too, and their first cell says the rest."""
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


if __name__ == "__main__":
    os.chdir(ROOT)
    main(sys.argv[1:])
