"""Programs that end with the one that started them, however that ends, and files that are whole or not there."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys

# Loaded before any fork, so that the child only has to call it.
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


def end_with_parent(sign: int = signal.SIGTERM) -> None:
    """Let Linux send this process `sign` when the one that started it has ended, were it by SIGKILL; exec keeps it."""
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, sign)


def unwind_when_ended() -> None:
    """A signal that ends this process first undoes what it is in the middle of, as Ctrl-C does."""
    for sign in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sign) != signal.SIG_IGN:  # nohup
            signal.signal(sign, lambda number, _: sys.exit(128 + number))


def give_way() -> None:
    """This process and its children take only the time that nobody else wants."""
    os.nice(19)
    if shutil.which("ionice"):
        subprocess.call(["ionice", "-c", "3", "-p", str(os.getpid())], stderr=subprocess.DEVNULL)


def start(command: "list[str]", **how: object) -> subprocess.Popen:
    """A program in a group of its own, so that `stop` reaches its children too."""
    end = (lambda: end_with_parent(signal.SIGKILL)) if LIBC else None
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=end, **how)


def stop(program: subprocess.Popen) -> None:
    if program.poll() is None:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def version(python: str) -> "tuple[int, int] | None":
    """(3, 12) for a command that runs, else None."""
    code = "import sys; print('%d %d' % sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor = answer.stdout.split()
    return int(major), int(minor)


def read(path: str) -> "str | None":
    if not os.path.exists(path):
        return None
    with open(path, errors="replace") as file:
        return file.read()


def write(path: str, text: str) -> None:
    """All of it at once: JupyterLab and notebooks read while the build writes."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    half = f"{path}.{os.getpid()}"
    with open(half, "w") as file:
        file.write(text)
    os.replace(half, path)


def remove(path: str) -> None:
    """A file or a folder, where there is one."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def tell(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone; what is built is not
        print(text, flush=True)
