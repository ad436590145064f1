"""The reader's board: the last values of each kind of run, in a file on this machine that nobody else is told of.

The environment variable COURSE_BOARD names another file; with COURSE_BOARD=0 there is none, and the board shows what
was measured since the kernel started.
"""

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

_session: list[str] = []


def note(name: str, lasts: Mapping[str, float], *, title: str = "", on: str = "", seconds: float = 0.0) -> None:
    """Note a run of this notebook: its metrics' last values, and what it ran on. Never raises."""
    if shell() is None or name.startswith("_") or not lasts:  # a check's own functions begin with _
        return
    notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).stem
    line = json.dumps({"notebook": notebook, "name": name, "title": title, "on": on, "seconds": seconds,
                       "at": time.time(), "lasts": dict(lasts)})
    _session.append(line)
    with contextlib.suppress(OSError):
        if (file := _file()) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as lines:
                lines.write(line + "\n")


def _file() -> Path | None:
    chosen = os.environ.get("COURSE_BOARD", "")
    if chosen:
        return None if chosen == "0" else Path(chosen)
    from platformdirs import user_data_path  # comes with Jupyter

    return user_data_path("course_utils", appauthor=False) / "board.jsonl"


def my_board() -> Picture:
    """What you measured in the notebooks of this course: runs of `launch`, live plots, each with its last values.

    Of runs of the same function on as many ranks and the same kind of device the last one is shown. The file stays on
    this machine; `COURSE_BOARD=0` in the environment switches it off, `COURSE_BOARD=path` moves it.
    """
    file, last = _file(), {}
    written = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    for line in [*written, *_session]:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # it was cut off, or another version wrote it
            one = json.loads(line)
            measured = ", ".join(f"{name} {style.number(value)}" for name, value in dict(one["lasts"]).items())
            took, day = one["seconds"], time.strftime("%Y-%m-%d", time.localtime(one["at"]))
            what = one["notebook"], one["name"], one["title"], one["on"]
            last[what] = one["at"], (*what, style.duration(took) if took else "", measured, day)
    rows = [row for _, row in sorted(last.values(), key=lambda run: (run[1][0], run[0]))]
    where = "of this session only" if file is None else f"kept in {str(file).replace(str(Path.home()), '~', 1)}"
    title = f"{len(rows)} run{'s' * (len(rows) != 1)}, {where}"
    return table(rows, ["notebook", "run", "title", "on", "took, with its start", "measured", "day"], title=title)
