"""Runs notebooks from top to bottom, each on its kernel, and saves their outputs: `make notebooks ONLY=06_ddp`.

Where a cell tagged `nbval-check-output` prints something else than before, nothing is saved; `--accept` saves it.
"""

import os
import sys
from difflib import unified_diff
from pathlib import Path

import nbformat
from nbclient import NotebookClient

CONTROLS = "application/vnd.jupyter.widget-view+json"  # dead without their kernel; their text says what they are


def checked(page: nbformat.NotebookNode) -> list[str]:
    """The lines of the outputs that are the same on every machine."""
    cells = [cell for cell in page.cells if "nbval-check-output" in cell.metadata.get("tags", [])]
    outs = [out for cell in cells for out in cell.outputs]  # what is printed comes in pieces, as it happens
    return "".join(out.get("text") or out.get("data", {}).get("text/plain", "") + "\n" for out in outs).splitlines()


def execute(path: Path, accept: bool = False) -> str:
    """Run a notebook and save it, or return what its checked outputs differ in. Raises what a cell raises."""
    print(path.name, flush=True)
    before, page = nbformat.read(path, 4), nbformat.read(path, 4)
    here = {"metadata": {"path": path.parent}}
    NotebookClient(page, timeout=600, record_timing=False, store_widget_state=False, resources=here).execute()
    difference = "\n".join(unified_diff(checked(before), checked(page), f"{path.name}, saved", "now", lineterm=""))
    if difference and not accept:
        return f"{difference}\nNot saved. --accept saves the new outputs."
    for out in (out for cell in page.cells for out in cell.get("outputs", [])):
        out.get("data", {}).pop(CONTROLS, None)
    page.metadata = before.metadata
    nbformat.write(page, path)
    return ""


if __name__ == "__main__":
    os.environ.setdefault("COURSE_BOARD", "0")  # a board then shows this notebook's own runs alone
    names = [word for word in sys.argv[1:] if word != "--accept"]
    sys.exit("\n".join(filter(None, [execute(Path(name), "--accept" in sys.argv) for name in names])) or None)
