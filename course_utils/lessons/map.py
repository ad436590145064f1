"""The course map: the notebooks that lie beside this one, and how each runs on this machine."""

import json
import re
import sys
from html import escape
from pathlib import Path

from ..machine import MARKS, Machine, discover
from ..pictures import Picture, table

FIRST_CELL = re.compile(
    r"# \d+ · (.+?)\n.*\*\*Takes\*\* (\d+ min) · \*\*Roads?\*\* ([^·\n]+?) ·", re.DOTALL
)
# What a notebook runs on; those not named run ranks, and those of the kernel xla its cores.
NEEDS = {
    "tensors_and_devices": "a device",
    "one_device": "a device",
    "memory": "a device",
    "dataparallel": "replicas",
}


def course_map() -> Picture:
    """The course's notebooks in this folder, each with a link, and what is native and what virtual here."""
    machine, rows = discover(), []
    for file in sorted(Path().glob("[0-9][0-9]_*.ipynb")):
        notebook = json.loads(file.read_text(encoding="utf-8"))
        first = FIRST_CELL.match("".join(notebook["cells"][0]["source"]))
        if first:  # else a notebook of the reader's own
            xla = notebook["metadata"]["kernelspec"]["name"] == "xla"
            here, how = _runs(machine, "XLA" if xla else NEEDS.get(file.stem[3:], "ranks"))
            title, *more = first.groups()
            link = Picture(f'<a href="{file.name}">{escape(title)}</a>', title)
            rows.append((file.name[:2], link, *more, f"{MARKS[how]} {how}: {here}"))
    return table(rows, ["", "notebook", "takes", "roads", "here"])


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
    python = (
        Path(json.loads(about.read_text(encoding="utf-8"))["argv"][0])
        if about.exists()
        else Path(sys.prefix)
    )
    return python.exists() and not python.is_relative_to(sys.prefix)
