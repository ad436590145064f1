"""What was measured, in this notebook and in earlier ones: a short record of each run, in a file on this machine.

Nothing leaves the machine. The environment variable COURSE_BOARD names another file; with COURSE_BOARD=0 there is none,
and what this session measured is known until its kernel ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .screen import shell

MOST = 200  # runs
POINTS, METRICS = 40, 6  # of a run
LARGE = 1 << 20  # bytes of the file from which on runs that came again are taken out of it

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
_session: dict[tuple, dict] = {}
_problem = ""


def keep(name: str, series: Series, **about: Any) -> None:
    """Keep a run of this notebook: its metrics, {name: (steps, values)}, and whatever else is known about it.

    A run with the same name, title, ranks and device takes the place of the last one. Never raises.
    """
    if not wanted(name):
        return
    with contextlib.suppress(Exception):
        curves = {metric: _thin(*points) for metric, points in list(series.items())[:METRICS]}
        record = {"notebook": _notebook(), "name": name, "at": round(time.time()), "curves": curves} | about
        _session.pop(_key(record), None)
        _session[_key(record)] = record
        while len(_session) > MOST:
            del _session[next(iter(_session))]
        if (file := place()) is not None:
            _write(file, record)


def wanted(name: str) -> bool:
    """Whether runs of this name are kept: in a notebook, and not what a check of the course runs."""
    return shell() is not None and not name.startswith("_")


def kept() -> list[dict]:
    """The last run of each kind, the oldest first."""
    found: dict[tuple, dict] = {}
    for record in [*_read(place()), *_session.values()]:
        found.pop(_key(record), None)
        found[_key(record)] = record
    return sorted(found.values(), key=lambda record: record["at"])[-MOST:]


def problem() -> str:
    """Why the last run could not be written into the file; "" when it was."""
    return _problem


def place() -> Path | None:
    """The file; None with COURSE_BOARD=0."""
    chosen = os.environ.get("COURSE_BOARD", "")
    if chosen:
        return None if chosen == "0" else Path(chosen)
    from platformdirs import user_data_path  # comes with Jupyter

    return user_data_path("course_utils", appauthor=False) / "board.jsonl"


def _write(file: Path, record: dict) -> None:
    global _problem
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and file.stat().st_size > LARGE:
            last = list({_key(old): old for old in _read(file)}.values())[-MOST:]
            new = file.with_suffix(".new")
            new.write_text("".join(json.dumps(old) + "\n" for old in last), encoding="utf-8")
            os.replace(new, file)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
        _problem = ""
    except OSError as error:
        _problem = error.strerror or str(error)


def _read(file: Path | None) -> Iterable[dict]:
    """The records that can be read; lines that were cut off, or that another version wrote, are left out."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file else []
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            record = json.loads(line)
            texts, curves = (record["notebook"], record["name"]), record["curves"].values()
            numbers = [record["at"], *(number for curve in curves for numbers in curve for number in numbers)]
            if (all(isinstance(text, str) for text in texts) and all(isinstance(n, (int, float)) for n in numbers)
                    and all(len(xs) == len(ys) for xs, ys in curves)):
                yield record


def _key(record: dict) -> tuple:
    return tuple(str(record.get(part, "")) for part in ("notebook", "name", "title", "ranks", "device"))


def _notebook() -> str:
    """The notebook's name, where JupyterLab or VS Code says it."""
    path = os.environ.get("JPY_SESSION_NAME") or shell().user_ns.get("__vsc_ipynb_file__", "")
    return Path(path).stem


def _thin(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most `POINTS` of them, the last included, to four digits."""
    chosen = range(len(xs) - 1, -1, -max(1, -(-len(xs) // POINTS)))[::-1]
    return [xs[i] for i in chosen], [float(f"{ys[i]:.4g}") for i in chosen]
