"""Runs notebooks from top to bottom, each on its kernel, and saves their outputs: `make notebooks ONLY=06_ddp`.

Where a cell tagged `nbval-check-output` prints something else than before, nothing is saved; `--accept` saves it. Nor
is it where a cell tagged `claim` prints a line that ends in False, or none in True, or where the machine had other work
before or afterwards; `--wait` waits for rest before each notebook.
"""

import os
import sys
from difflib import unified_diff
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

CONTROLS = "application/vnd.jupyter.widget-view+json"  # dead without their kernel; their text says what they are


def checked(page: nbformat.NotebookNode) -> list[str]:
    """The lines of the outputs that are the same on every machine."""
    cells = [cell for cell in page.cells if "nbval-check-output" in cell.metadata.get("tags", [])]
    outs = [
        out for cell in cells for out in cell.outputs
    ]  # what is printed comes in pieces, as it happens
    return "".join(
        out.get("text") or out.get("data", {}).get("text/plain", "") + "\n" for out in outs
    ).splitlines()


def unkept(page: nbformat.NotebookNode) -> list[str]:
    """The claims that are False, and the cells tagged `claim` in which none is True."""
    wrong = []
    for cell in (cell for cell in page.cells if "claim" in cell.metadata.get("tags", [])):
        lines = "".join(out.get("text", "") for out in cell.outputs).splitlines()
        kept = any(line.endswith("True") for line in lines)
        wrong += [line for line in lines if line.endswith("False")] or [
            f"No claim is True: {cell.source}"
        ][kept:]
    return wrong


def unrest(wait: bool = False) -> str:
    """What keeps this machine busy, in two seconds in which this process does nothing; "" where it is at rest."""
    while (busy := 100 - (now := psutil.cpu_times_percent(2)).idle) > 10 and wait:
        pass
    return (
        f"Not at rest: {busy:.0f} % of the CPU was used, {getattr(now, 'steal', 0):.0f} % stolen."
        * (busy > 10)
    )


def execute(path: Path, accept: bool = False, wait: bool = False) -> str:
    """Run a notebook and save it, or return why it is not saved. Raises what a cell raises."""
    print(path.name, flush=True)
    before, page = nbformat.read(path, 4), nbformat.read(path, 4)
    here = {"metadata": {"path": path.parent}}
    wrong, since = [unrest(wait)], psutil.cpu_times()
    NotebookClient(
        page, timeout=600, record_timing=False, store_widget_state=False, resources=here
    ).execute()
    used = [now - then for now, then in zip(psutil.cpu_times(), since, strict=True)]
    if (stolen := getattr(type(since)(*used), "steal", 0) / sum(used)) > 0.02:
        wrong.append(f"{stolen:.0%} of the CPU time was stolen meanwhile.")
    if wrong := "\n".join(filter(None, [*wrong, unrest(), *unkept(page)])):
        return f"{path.name}\n{wrong}\nNot saved."
    difference = "\n".join(
        unified_diff(checked(before), checked(page), f"{path.name}, saved", "now", lineterm="")
    )
    if difference and not accept:
        return f"{difference}\nNot saved. --accept saves the new outputs."
    for out in (out for cell in page.cells for out in cell.get("outputs", [])):
        out.get("data", {}).pop(CONTROLS, None)
    page.metadata = before.metadata
    nbformat.write(page, path)
    return ""


if __name__ == "__main__":
    os.environ.setdefault("COURSE_BOARD", "0")  # a board then shows this notebook's own runs alone
    names, flags = (
        [word for word in sys.argv[1:] if word[:2] != "--"],
        {"--accept", "--wait"} & set(sys.argv),
    )
    said = [execute(Path(name), "--accept" in flags, "--wait" in flags) for name in names]
    sys.exit("\n".join(filter(None, said)) or None)
