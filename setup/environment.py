"""A folder that pip fills from a list of requirements: once, one build at a time, going on where the last stopped."""

import contextlib
import glob
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import time

from . import pip, torch_build
from .process import read, remove, start, stop, tell, version, write

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 11)
PYTHON = os.environ.get("PYTHON")


class Cannot(Exception):
    """Why an environment cannot be built; `lasting` when another try would end the same way."""

    def __init__(self, why: str, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


class Environment:
    def __init__(
        self, name: str, requirements: str, newest: "tuple[int, int]", needs: int, smaller: int, about: str = ""
    ) -> None:
        self.name, self.requirements, self.newest, self.about = name, requirements, newest, about
        self.needs, self.smaller = needs, smaller  # GB on disk while it is built, and with PyTorch's CPU build
        self.folder = os.path.join(ROOT, name)
        self.python = os.path.join(self.folder, "bin", "python")
        self.stamp = os.path.join(self.folder, "ready")  # written last: a build that was interrupted has none
        self.failed = os.path.join(self.folder, "failed")
        self.compiled = os.path.join(self.folder, "compiled")
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

    @contextlib.contextmanager
    def lock(self, behind: bool) -> object:
        """Two builds never meet. pip holds the lock too: one that outlives its build keeps the next one waiting."""
        import fcntl  # not on Windows

        path = os.path.join(ROOT, ".venv", f"lock{self.name}")  # clearing .venv leaves it alone
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a") as file:
            for halves in itertools.count():
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if halves % (2 * pip.SILENCE) == 0 and not (behind and halves):
                        waits = "JupyterLab does not wait" if behind else f"this one waits for it, {halves / 2:.0f} s"
                        tell(f"Another make is building {self.name}; {waits}.")
                    time.sleep(0.5)
                except OSError:
                    break  # a disk that knows no locks
            yield file

    def build(self, find: object, gpu: bool, extra: "list[str]", report: object, lock: object) -> None:
        """Everything up to the stamp. `find()` names a Python, `gpu`: is one of use here, `extra`: more to install."""
        options, which = torch_build.choose(gpu)
        if self.fits():
            tell(f"Going on with {self.name}: {which}.")
            pip.repair(self.packages())
        else:
            self.create(find(), which, bool(options), lock)
        self.install([*options, *extra], report, lock)

    def fits(self) -> bool:
        """Whether pip can go on in what is there, an interrupted build or an older one."""
        here = version(self.python)
        if here is None or not OLDEST <= here <= self.newest or (PYTHON and here != version(PYTHON)):
            return False
        return any(glob.glob(os.path.join(glob.escape(site), "pip-*.dist-info", "RECORD")) for site in self.packages())

    def packages(self) -> "list[str]":
        return glob.glob(os.path.join(glob.escape(self.folder), "lib", "python*", "site-packages"))

    def create(self, python: str, which: str, small: bool, lock: object) -> None:
        """An empty environment, in place of what may be half of one, or of a Python that is gone."""
        needs, free = self.smaller if small else self.needs, shutil.disk_usage(ROOT).free / 1e9
        if free < needs:
            less = f" (or {self.smaller} GB with CPU=1: PyTorch's CPU build)" if needs > self.smaller else ""
            raise Cannot(f"{self.name} needs {needs} GB of disk{less}; {ROOT} has {free:.1f} GB free. "
                         "Make room, then try again.")
        number = say(version(python))
        tell(f"Building {self.name}{self.about} with Python {number}: {which}; some minutes, once.")
        for old in os.listdir(self.folder) if os.path.isdir(self.folder) else []:
            if not old.startswith("lock."):
                remove(os.path.join(self.folder, old))
        making = start([python, "-m", "venv", self.folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       pass_fds=[lock.fileno()])
        try:
            words = making.communicate()[0]
        finally:
            stop(making)
        if making.returncode:
            tell(words.decode(errors="replace"))
            raise Cannot(f"{python} could not make a virtual environment. "
                         f"On Debian and Ubuntu: sudo apt install python{number}-venv")

    def install(self, options: "list[str]", report: object, lock: object) -> None:
        """Let pip do its work, then leave the stamp."""
        mark = self.fingerprint()
        remove(self.stamp)
        remove(self.failed)
        command = [self.python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-compile"]
        command += ["--progress-bar", "off", "-r", self.requirements, "-e", ".", *options]
        tmp = os.path.join(self.folder, "tmp")
        code, said, progress = pip.run(command, tmp, self.log, report, cwd=ROOT, pass_fds=[lock.fileno()])
        if code:
            tell("\n".join(f"    pip: {line}" for line in pip.last_words(said)))
            why, lasting = self.reason(said)
            raise Cannot(f"{why} pip's last words are above, all of them in {self.log}.", lasting)
        write(self.stamp, mark)
        took = time.time() - progress.began
        tell(f"{self.name} is ready after {took:.0f} s, {progress.fetched():.0f} MB fetched.")

    def reason(self, said: str) -> "tuple[str, bool]":
        """Why pip failed, in a sentence, from what it said, and whether it would again."""
        if "No space left on device" in said or "Disk quota exceeded" in said:
            return f"The disk is full. Make room in {ROOT}, then try again.", False
        if "connection broken by" in said or "Read timed out" in said or "ProxyError" in said or "SSLError" in said:
            return "The packages could not be downloaded. Check the network (or proxy), then try again.", False
        if "No matching distribution found" in said:
            python = say(version(self.python))
            return f"A package has no build for this machine ({platform.platform()}, Python {python}).", True
        return "The packages could not be installed.", True

    @contextlib.contextmanager
    def compiling(self) -> object:
        """Byte code, meanwhile. pip would make it on one core and before anybody may start, imports when it is late."""
        mark = read(self.stamp)
        if mark is None or mark == read(self.compiled):
            yield
            return
        torch = [os.path.join(site, "torch") for site in self.packages()]  # first what the first cell waits for
        command = [self.python, "-m", "compileall", "-qq", "-j0", *torch, *self.packages()]
        program = start(command, stdout=subprocess.DEVNULL)
        try:
            yield
            program.wait()  # its exit status says only that some package has a file for another Python
            write(self.compiled, mark)
        finally:
            stop(program)


def say(number: "tuple[int, int]") -> str:
    return "{}.{}".format(*number)
