"""The course map: the notebooks that lie beside this one, and how each runs on this machine."""

import json
import re
import sys
from html import escape
from pathlib import Path

from ..errors import CourseError
from ..machine import MARKS, Machine, discover
from ..pictures import Picture, table

FIRST_CELL = re.compile(
    r"# \d\d · (.+?)\n.*\*\*Takes\*\* (\d+ min) · \*\*Tracks?\*\* ([^·\n]+?) ·", re.DOTALL
)
# What a notebook runs on, by its name. All others run ranks, or on the kernel xla its cores.
NEEDS = {
    "tensors_and_devices": "a device",
    "one_device": "a device",
    "memory": "a device",
    "dataparallel": "replicas",
    "many_machines": "hosts",
}


def course_map() -> Picture:
    """The notebooks in this folder, each with a link, and how it runs here: native or virtual."""
    machine = discover()
    rows = []
    for file in sorted(Path().glob("[0-9][0-9]_*.ipynb")):
        number, _, name = file.stem.partition("_")
        notebook = json.loads(file.read_text(encoding="utf-8"))
        title, minutes, tracks = _first_cell(file, notebook)
        link = Picture(f'<a href="{file.name}">{escape(title)}</a>', title)

        kernel = notebook["metadata"]["kernelspec"]["name"]
        here, how = _runs(machine, "cores" if kernel == "xla" else NEEDS.get(name, "ranks"))
        rows.append((number, link, minutes, tracks, f"{MARKS[how]} {how}: {here}"))
    return table(rows, ["", "notebook", "takes", "tracks", "here"])


def _first_cell(file: Path, notebook: dict) -> tuple[str, str, str]:
    """Title, minutes and tracks of a notebook of the course, as its first cell names them."""
    text = "".join(notebook["cells"][0]["source"]) if notebook["cells"] else ""
    first = FIRST_CELL.match(text)
    if first is None:
        raise CourseError(
            f"The first cell of {file} cannot be read. Expected: a line "
            f"'# {file.name[:2]} · A question?', and below it '**Takes** 45 min · **Tracks** "
            "short, strategies · **Needs** …'. A notebook of your own needs "
            "a name without two digits and a _ in front."
        )
    return first[1], first[2], first[3]


def _runs(machine: Machine, need: str) -> tuple[str, str]:
    """How a notebook that needs this runs here, and whether that is native."""
    if need == "a device":
        return machine.devices[-1].title if machine.accelerators else "the CPU", "native"
    if need == "replicas":
        gpus = sum(device.kind != "tpu" for device in machine.accelerators)
        return (f"{gpus} GPUs", "native") if gpus > 1 else ("replicas on the CPU", "virtual")
    if need == "hosts":
        return "hosts that share the CPU", "virtual"
    if need == "ranks":
        return machine.runs(machine.ranks), machine.how(machine.ranks)
    if not (machine.xla or _xla_kernel()):
        return "needs the XLA kernel", "not here"
    return (str(machine.tpu), "native") if machine.tpu else ("cores of XLA's CPU client", "virtual")


def _xla_kernel() -> bool:
    """Whether the kernel `xla` has a Python of its own: make's, or one that was named by hand."""
    if Path(f"{sys.prefix}-xla", "ready").exists():
        return True
    about = Path(sys.prefix, "share/jupyter/kernels/xla/kernel.json")
    if not about.exists():
        return False
    python = Path(json.loads(about.read_text(encoding="utf-8"))["argv"][0])
    return python.exists() and not python.is_relative_to(sys.prefix)
