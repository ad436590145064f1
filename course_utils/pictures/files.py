"""What the ranks of a run write to JSONL files, one a rank, as it comes: `LivePlot.follow` reads it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import CourseError

PAUSE = 0.1  # seconds between two readings
SHARE = 0.05  # of the time that reading may take, where there are many files or a slow disk

Until: TypeAlias = subprocess.Popen | Iterable[subprocess.Popen] | Callable[[], Any] | None


class Files:
    """The JSONL files of a folder, read again and again: each record once, and a line only when it is complete."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)
        if self.folder.is_file():
            raise CourseError(f"follow({str(folder)!r}): give the folder that holds rank0.jsonl and so on, not a file.")
        self._read: dict[Path, tuple[int, int]] = {}  # file -> (its inode, bytes read)

    def new(self) -> Iterator[dict[str, Any] | int]:
        """The records since the last call; before those of a file that began anew, its rank."""
        for path in sorted(self.folder.glob("*.jsonl")):
            rank = int("".join(filter(str.isdigit, path.stem)) or 0)
            try:
                with path.open("rb") as file:
                    about = os.fstat(file.fileno())
                    inode, at = self._read.get(path, (about.st_ino, 0))
                    anew = about.st_ino != inode or about.st_size < at
                    at = file.seek(0 if anew else at)
                    data = file.read()
            except OSError:  # gone since it was listed, or a shared disk is away for a moment
                continue
            lines = data[: data.rfind(b"\n") + 1]  # the last line may be half-written
            self._read[path] = about.st_ino, at + len(lines)
            if anew:
                yield rank
            yield from ({"rank": rank} | record for record in map(_record, lines.splitlines()))

    def follow(self, over: Callable[[], bool], limit: float, tick: Callable[[], Any]) -> Iterator[dict[str, Any] | int]:
        """What `new` gives until the run is over, or nothing has come for `limit` seconds, which is said."""
        last = time.monotonic()
        while True:
            done, began = over(), time.monotonic()  # asked before reading: what is written before the end is read
            for one in self.new():
                last = began
                yield one
            tick()
            if done:
                return
            if (now := time.monotonic()) - last > limit:
                print(f"Nothing new in {self.folder} for {limit:g} s: the plot ends here. The run may go on.")
                return
            time.sleep(max(PAUSE, (now - began) / SHARE))


def _record(line: bytes) -> dict[str, Any]:
    """What a line holds; nothing where it is broken, as after a kill or on a full disk."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if name != "time" or isinstance(value, int | float)}


def ended(until: Until) -> Callable[[], bool]:
    """A function that says whether the run is over.

    Raises:
        CourseError: `until` is neither a process, nor several, nor a function, nor None.
    """
    if until is None:
        return lambda: True
    if isinstance(until, subprocess.Popen):
        until = [until]
    elif callable(until):
        return lambda: bool(until())
    processes = [*until] if isinstance(until, Iterable) else []
    if not processes or not all(isinstance(one, subprocess.Popen) for one in processes):
        raise CourseError(f"follow(until={until!r:.60}): give a process of subprocess.Popen, several, or a function.")
    return lambda: None not in [one.poll() for one in processes]
