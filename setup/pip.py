"""pip at work: its words go to its log, and what it is doing, how far and how long is said in a line now and then."""

import contextlib
import glob
import os
import re
import subprocess
import time
from urllib.parse import unquote

from .process import remove, start, stop

BIG = 40  # MB: what is fetched in more than a moment gets a line of its own
SILENCE = 20  # seconds after which there is a line in any case
UNITS = {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}


class Progress:
    """What pip is doing, from its own words."""

    def __init__(self, tmp: str) -> None:
        self.tmp = tmp
        self.began = time.time()
        self.doing = "asking which packages are needed"
        self.before = 0.0  # MB fetched
        self.file, self.size = "", 0.0  # what is being fetched

    def hear(self, line: str) -> bool:
        """Whether a line begins something new that takes its time."""
        line = line.strip()
        fetching = re.match(r"Downloading (\S+) \(([\d.]+) (\w+)\)", line)
        if fetching:
            self.before += self.size
            self.file = unquote(fetching[1].rsplit("/", 1)[-1])
            self.size = float(fetching[2]) * UNITS.get(fetching[3], 0)
            self.doing = f"fetching {title(self.file)} ({self.size:.0f} MB)"
            return self.size >= BIG
        taking = re.match(r"(?:Using cached|Processing) (\S+\.(?:whl|tar\.gz))", line)
        if taking:
            self.doing = f"taking {title(unquote(os.path.basename(taking[1])))}, which is here already"
        elif line.startswith("Installing collected packages:"):
            self.before, self.size = self.before + self.size, 0.0
            self.doing = f"installing {line.count(',') + 1} packages"
            return True
        return False

    def fetched(self) -> float:
        """MB so far; of the file that is on its way, what lies in pip's folder."""
        there = glob.glob(os.path.join(glob.escape(self.tmp), "*", glob.escape(self.file or "-")))
        return self.before + min(self.size, sum(map(os.path.getsize, there)) / 1e6)

    def __str__(self) -> str:
        return f"{self.doing}, {self.fetched():.0f} MB fetched so far, {time.time() - self.began:.0f} s"


def title(file: str) -> str:
    """torch 2.9.0+cpu, from the name of a wheel or of an archive."""
    return re.sub(r"\.tar\.gz$|\.zip$", "", " ".join(file.split("-")[:2]))


def run(command: "list[str]", tmp: str, log: str, report: object, **how: object) -> "tuple[int, str, Progress]":
    """pip's exit status, what it said, and how far it came; `report(progress, new)` several times a second.

    Not with pip's own --log: that is tens of thousands of lines, and a tenth of pip's time.
    """
    remove(tmp)  # of a pip that was killed
    os.makedirs(tmp)
    progress, said, shown, code = Progress(tmp), "", 0.0, None
    surroundings = {**os.environ, "TMPDIR": tmp}  # the disk that has room, and where the next try finds leftovers
    with open(log, "w") as ears, open(log, errors="replace") as eyes:
        pip = start(command, stdout=ears, stderr=subprocess.STDOUT, env=surroundings, **how)
        try:
            while code is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = pip.wait(timeout=0.3)
                heard = said.rfind("\n") + 1
                said += eyes.read()
                new = [line for line in said[heard : said.rfind("\n") + 1].splitlines() if progress.hear(line)]
                late = time.time() - shown > SILENCE
                report(progress, bool(new) or late)
                shown = time.time() if new or late else shown
            return code, said, progress
        finally:
            stop(pip)
            remove(tmp)


def last_words(said: str) -> "list[str]":
    """The lines that say why: those marked as errors, and else the last ones."""
    lines = [line for line in said.splitlines() if line.strip()]
    return [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)][-6:] or lines[-6:]


def repair(folders: "list[str]") -> None:
    """Take away what an interrupted pip left half installed; it believes the rest of it to be there."""
    found = [os.path.join(folder, name) for folder in folders for name in os.listdir(folder)]
    for info in (path for path in found if path.endswith(".dist-info")):
        try:
            with open(os.path.join(info, "RECORD"), errors="replace") as file:
                whole = "/INSTALLER," in file.read()  # pip's own RECORD, its last word, in place of the wheel's
        except OSError:
            whole = False
        if not whole:
            remove(info)
    for old in (path for path in found if os.path.basename(path).startswith("~")):  # put aside for what never came
        remove(old)
