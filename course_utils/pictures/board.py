"""The reader's board: the last values of each kind of run, in a file on this machine that nobody else is told of.

The environment variable COURSE_BOARD names another file; with COURSE_BOARD=0 there is none, and the board shows what
was measured since the kernel started.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from .. import style
from .picture import Picture
from .screen import shell
from .tables import table

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>What I measured</title><style>:root {color-scheme: light dark} body {margin: 2rem}</style>
<h1 style="font-family:sans-serif">What I measured</h1>"""

_session: list[dict] = []


def note(name: str, lasts: Mapping[str, float], *, title: str = "", on: str = "", seconds: float = 0.0) -> None:
    """Note a run of this notebook: its metrics' last values, and what it ran on. Never raises."""
    if shell() is None or name.startswith("_") or not lasts:  # a check's own functions begin with _
        return
    record = {"notebook": Path(os.environ.get("JPY_SESSION_NAME", "")).stem, "name": name, "title": title, "on": on,
              "seconds": seconds, "at": time.time(), "lasts": dict(lasts)}
    _session.append(record)
    with contextlib.suppress(OSError, TypeError):
        if (file := _file()) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")


def _file() -> Path | None:
    chosen = os.environ.get("COURSE_BOARD", "")
    if chosen:
        return None if chosen == "0" else Path(chosen)
    from platformdirs import user_data_path  # comes with Jupyter

    return user_data_path("course_utils", appauthor=False) / "board.jsonl"


class Board(Picture):
    """A table of runs; the last line of a cell shows it."""

    def save(self, path: str | Path) -> Path:
        """Write it as one page of HTML that needs nothing else, light or dark as the reader's browser is; its path."""
        Path(path).write_text(PAGE + self.html, encoding="utf-8")
        return Path(path)


def my_board() -> Board:
    """What you measured in the notebooks of this course: runs of `launch`, live plots, each with its last values.

    Of runs of the same function on as many ranks and the same kind of device the last one is shown. The file stays on
    this machine; `COURSE_BOARD=0` in the environment switches it off, `COURSE_BOARD=path` moves it.

    Example:
        my_board().save("board.html")
    """
    file, last = _file(), {}
    written = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    for one in [*map(_record, written), *_session]:
        if one:
            last[one["notebook"], one["name"], one["title"], one["on"]] = one
    rows = [
        (one["notebook"], one["name"], one["title"], one["on"],
         style.duration(one["seconds"]) if one["seconds"] else "",
         ", ".join(f"{name} {style.number(value)}" for name, value in one["lasts"].items()),
         time.strftime("%Y-%m-%d", time.localtime(one["at"])))
        for one in sorted(last.values(), key=lambda one: (one["notebook"], one["at"]))]
    where = "of this session only" if file is None else f"kept in {str(file).replace(str(Path.home()), '~', 1)}"
    title = f"{len(rows)} run{'s' * (len(rows) != 1)}, {where}"
    drawn = table(rows, ["notebook", "run", "title", "on", "took, with its start", "measured", "day"], title=title)
    return Board(drawn.html, drawn.alt)


def _record(line: str) -> dict:
    """What a line holds; nothing where it was cut off, or written by another version."""
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict) and {"notebook", "name", "title", "on", "seconds", "at", "lasts"} <= found.keys():
            return found
    return {}
