"""The course map: the notebooks that lie beside this one, and how each runs on this machine."""

from __future__ import annotations

import json
import re
import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

from ..machine.card import MARKS
from ..machine.devices import discover
from ..machine.machine import Machine
from ..pictures.picture import Picture
from ..style import FONT, QUIET, ROLE, SMALL, TEXT

# What a notebook runs on; those not named run ranks, and those of the kernel xla its cores.
NEEDS = {"tensors_and_devices": "a device", "one_device": "a device", "memory": "a device", "dataparallel": "replicas"}


class Stop(NamedTuple):
    """One notebook on the map."""

    file: str
    question: str
    minutes: str
    roads: str
    here: str
    how: str  # a key of MARKS


def course_map(machine: Machine | None = None, *, folder: str | Path = ".") -> Picture:
    """The notebooks found in `folder`, as a path to follow, with what is native and what virtual on `machine`."""
    found = stops(machine or discover(), Path(folder))
    if not found:
        text = f"No notebooks of the course in {Path(folder).resolve()}: open one there, or pass folder=."
        return Picture(f"<p>{escape(text)}</p>", text)
    wide = max(len(stop.question) for stop in found)
    lines = [f"{s.file[:2]}  {s.question:<{wide}}  {s.minutes:<7}{s.roads:<19}{MARKS[s.how][0]} {s.how}: {s.here}"
             for s in found]
    rows = "".join(_row(stop, last=stop is found[-1]) for stop in found)
    page = f'<div style="font:{TEXT + 1}px/1.35 {FONT};color:inherit;max-width:680px">{rows}</div>'
    return Picture(page, "\n".join(lines))


def stops(machine: Machine, folder: Path) -> list[Stop]:
    """The notebooks called NN_name.ipynb; question, minutes and roads are read from their first cell."""
    found = []
    for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        try:
            notebook = json.loads(path.read_text(encoding="utf-8"))
            first = "".join(notebook["cells"][0]["source"])
        except (OSError, ValueError, LookupError):
            continue
        title = re.search(r"^# *(?:\d+ *[·:.-]* *)?(.+)$", first, re.MULTILINE)
        minutes = re.search(r"(\d+) *min", first)
        roads = re.search(r"\*\*Roads?\*\* ([^·\n]+)", first)
        question = title[1].strip() if title else path.stem
        xla = notebook.get("metadata", {}).get("kernelspec", {}).get("name") == "xla"
        runs = _runs(machine, "XLA" if xla else NEEDS.get(path.stem[3:], "ranks"))
        found.append(Stop(path.name, question, f"{minutes[1]} min" if minutes else "",
                          roads[1].strip() if roads else "", *runs))
    return found


def _runs(machine: Machine, need: str) -> tuple[str, str]:
    """How a notebook that needs this runs here, and whether that is native."""
    gpus = len(machine.accelerators)
    if need == "a device":
        return (machine.accelerators[0].title, "native") if gpus else ("the CPU", "native")
    if need == "XLA":
        if not (machine.xla or _xla_kernel()):
            return "needs the XLA kernel", "not here"
        return (machine.tpu, "native") if machine.tpu else ("cores of XLA's CPU client", "virtual")
    if need == "replicas":
        return (f"{gpus} GPUs", "native") if gpus > 1 else ("replicas on the CPU", "virtual")
    ranks = gpus if gpus > 1 else 4
    return machine.runs(ranks), "native" if ranks <= max(gpus, machine.cores) else "virtual"


def _xla_kernel() -> bool:
    """Whether JupyterLab has a kernel `xla` with a Python of its own; where .venv-xla is missing, it runs this one."""
    try:
        about = json.loads((Path(sys.prefix) / "share/jupyter/kernels/xla/kernel.json").read_text(encoding="utf-8"))
        python = Path(about["argv"][0])
    except (OSError, ValueError, LookupError):
        return False
    return python.exists() and python.parents[1] != Path(sys.prefix)


def _row(stop: Stop, *, last: bool) -> str:
    mark, colour = MARKS[stop.how]
    line = "" if last else f"border-left:2px solid {ROLE['forward']}"
    circle = (
        f"position:absolute;left:0;top:0;width:26px;height:26px;border-radius:13px;background:{ROLE['forward']};"
        "color:white;font-weight:600;font-size:12px;line-height:26px;text-align:center"
    )
    when = escape(" · ".join(filter(None, (stop.minutes, stop.roads))))
    minutes = f'&ensp;<span style="opacity:{QUIET};font-size:{SMALL}px;white-space:nowrap">{when}</span>'
    return (
        f'<div style="position:relative;margin-left:2px"><div style="margin-left:12px;{line};padding:2px 0 12px 26px">'
        f'<a href="{escape(stop.file)}" style="font-weight:600">{escape(stop.question)}</a>{minutes}'
        f'<div style="font-size:{TEXT}px"><span style="color:{colour}">{mark}</span> {stop.how}'
        f'<span style="opacity:{QUIET}">&ensp;{escape(stop.here)}</span></div></div>'
        f'<div style="{circle}">{stop.file[:2]}</div></div>'
    )
