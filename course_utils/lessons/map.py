"""The course map: the notebooks that lie beside this one, and how each runs on this machine."""

import json
import re
import sys
from html import escape
from pathlib import Path

from ..machine import MARKS, Machine, discover
from ..pictures.picture import Picture
from ..style import FONT, QUIET, ROLE

FIRST_CELL = re.compile(r"# \d+ · (.+?)\n.*\*\*Takes\*\* (\d+ min) · \*\*Roads?\*\* ([^·\n]+?) ·", re.DOTALL)
# What a notebook runs on; those not named run ranks, and those of the kernel xla its cores.
NEEDS = {"tensors_and_devices": "a device", "one_device": "a device", "memory": "a device", "dataparallel": "replicas"}


def course_map() -> Picture:
    """The course's notebooks in this folder, as a path to follow, with what is native and what virtual here."""
    machine, lines, stops = discover(), [], []
    for file in sorted(Path().glob("[0-9][0-9]_*.ipynb")):
        notebook = json.loads(file.read_text(encoding="utf-8"))
        first = FIRST_CELL.match("".join(notebook["cells"][0]["source"]))
        if first is None:  # a notebook of the reader's own
            continue
        xla = notebook["metadata"]["kernelspec"]["name"] == "xla"
        here, how = _runs(machine, "XLA" if xla else NEEDS.get(file.stem[3:], "ranks"))
        lines.append(f"{file.name[:2]}  {first[1]:<55}{first[2]:<8}{first[3]:<19}{MARKS[how]} {how}: {here}")
        stops.append(_stop(file.name, *first.groups(), here, how))
    if not stops:
        text = f"No notebooks of the course in {Path.cwd()}: where they are, this shows a map of them."
        return Picture(f"<p>{escape(text)}</p>", text)
    line = f'<div style="margin-left:12px;border-left:2px solid {ROLE["forward"]};height:12px"></div>'
    page = f'<div style="font:13px/1.35 {FONT};color:inherit;max-width:680px">{line.join(stops)}</div>'
    return Picture(page, "\n".join(lines))


def _stop(file: str, question: str, minutes: str, roads: str, here: str, how: str) -> str:
    circle = (f"width:26px;height:26px;border-radius:13px;background:{ROLE['forward']};color:white;font-weight:600;"
              "font-size:12px;line-height:26px;text-align:center")
    return (
        f'<div style="display:flex;gap:12px"><div style="{circle}">{file[:2]}</div><div>'
        f'<a href="{file}" style="font-weight:600">{escape(question)}</a>&ensp;'
        f'<span style="opacity:{QUIET};font-size:11px;white-space:nowrap">{minutes} · {roads}</span>'
        f'<div style="font-size:12px">{MARKS[how]} {how}'
        f'<span style="opacity:{QUIET}">&ensp;{escape(here)}</span></div></div></div>'
    )


def _runs(machine: Machine, need: str) -> tuple[str, str]:
    """How a notebook that needs this runs here, and whether that is native."""
    if need == "a device":
        return machine.devices[-1].title if machine.accelerators else "the CPU", "native"
    if need == "replicas":
        gpus = len(machine.accelerators)
        return (f"{gpus} GPUs", "native") if gpus > 1 else ("replicas on the CPU", "virtual")
    if need == "ranks":
        return machine.runs(machine.ranks), machine.how(machine.ranks)
    if not (machine.xla or _xla_kernel()):
        return "needs the XLA kernel", "not here"
    return (machine.tpu, "native") if machine.tpu else ("cores of XLA's CPU client", "virtual")


def _xla_kernel() -> bool:
    """Whether JupyterLab's kernel `xla` has a Python of its own: where .venv-xla is missing, it runs this one."""
    about = Path(sys.prefix, "share/jupyter/kernels/xla/kernel.json")
    python = Path(json.loads(about.read_text(encoding="utf-8"))["argv"][0]) if about.exists() else Path(sys.prefix)
    return python.exists() and not python.is_relative_to(sys.prefix)
