"""The reader's board: the last values of each kind of run, in a file on this machine that nobody else is told of.

There is no file, and the board is this session's, until `my_board()` is first called. COURSE_BOARD=path in the
environment moves the file; with COURSE_BOARD=0 there is never one.
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


def note(
    name: str, lasts: Mapping[str, float], *, title: str = "", on: str = "", seconds: float = 0.0
) -> None:
    """Note a run of this notebook: its metrics' last values, and what it ran on. Never raises."""
    if shell() is None or name.startswith("_") or not lasts:  # a check's own functions begin with _
        return
    notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).stem
    _session.append(
        json.dumps(
            {
                "notebook": notebook,
                "name": name,
                "title": title,
                "on": on,
                "seconds": seconds,
                "at": time.time(),
                "lasts": dict(lasts),
            }
        )
    )
    with contextlib.suppress(OSError):
        if (file := _file()) and file.exists():
            with file.open("a", encoding="utf-8") as lines:
                lines.write(_session[-1] + "\n")


def _file() -> Path | None:
    from platformdirs import user_data_path  # comes with Jupyter

    chosen = (
        os.environ.get("COURSE_BOARD")
        or user_data_path("course_utils", appauthor=False) / "board.jsonl"
    )
    return None if chosen == "0" else Path(chosen)


def my_board() -> Picture:
    """What you measured in the notebooks: of each kind of `launch` or live plot the last run, with its last values.

    The first call makes the file in which this session's and later runs are kept. Delete it to end that.
    """
    file, last = _file(), {}
    if file and not file.exists():
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(line + "\n" for line in _session), encoding="utf-8")
    for line in [
        *(file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []),
        *_session,
    ]:
        with contextlib.suppress(
            ValueError, KeyError, TypeError
        ):  # it was cut off, or another version wrote it
            run = json.loads(line)
            what = run["notebook"], run["name"], run["title"], run["on"]
            took = style.duration(run["seconds"]) if run["seconds"] else ""
            measured = ", ".join(
                f"{name} {style.number(value)}" for name, value in run["lasts"].items()
            )
            last[what] = (
                run["at"],
                (*what, took, measured, time.strftime("%Y-%m-%d", time.localtime(run["at"]))),
            )
    rows = [row for _, row in sorted(last.values(), key=lambda run: (run[1][0], run[0]))]
    kept = file and file.exists()
    where = (
        f"kept in {str(file).replace(str(Path.home()), '~', 1)}" if kept else "of this session only"
    )
    return table(
        rows,
        ["notebook", "run", "title", "on", "took, with its start", "measured", "day"],
        title=f"{len(rows)} run{'s' * (len(rows) != 1)}, {where}",
    )
