"""Runs notebooks from top to bottom and saves their outputs: `make notebooks ONLY=06_ddp`.

Nothing is saved where a cell tagged `nbval-check-output` prints something else than before, unless
`--accept` is given; where a cell tagged `claim` prints a line that ends in False, or none in True;
and where the machine had other work, for whose end `--wait` waits before each notebook.
"""

import argparse
import sys
from difflib import unified_diff
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbclient import NotebookClient

# Controls are dead without their kernel; their text says what they were.
CONTROLS = "application/vnd.jupyter.widget-view+json"


def checked(page: nbformat.NotebookNode) -> list[str]:
    """The lines of the outputs that are the same on every machine."""
    text = ""  # joined first, because what is printed comes in pieces, as it happens
    for cell in tagged(page, "nbval-check-output"):
        for out in cell.outputs:
            text += out.get("text") or out.get("data", {}).get("text/plain", "") + "\n"
    return text.splitlines()


def false_claims(page: nbformat.NotebookNode) -> list[str]:
    """The claims that are False, and the cells tagged `claim` in which none is True."""
    wrong = []
    for cell in tagged(page, "claim"):
        lines = "".join(out.get("text", "") for out in cell.outputs).splitlines()
        false = [line for line in lines if line.endswith("False")]
        if not false and not any(line.endswith("True") for line in lines):
            false = [f"No claim is True: {cell.source}"]
        wrong += false
    return wrong


def tagged(page: nbformat.NotebookNode, tag: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in page.cells if tag in cell.metadata.get("tags", [])]


def cpu_load(wait: bool = False) -> str:
    """What keeps this machine busy while this process sleeps for 2 s; "" where it is idle."""
    while True:
        now = psutil.cpu_times_percent(2)
        busy = 100 - now.idle
        if busy <= 10:
            return ""
        if not wait:
            stolen = getattr(now, "steal", 0)
            return f"Not idle: {busy:.0f} % of the CPU was used, {stolen:.0f} % stolen."


def stolen_share(before: Any) -> float:
    """The share of the CPU time since `before`, 0 to 1, that the host of this machine took."""
    now = psutil.cpu_times()
    stolen = getattr(now, "steal", 0.0) - getattr(before, "steal", 0.0)
    return stolen / (sum(now) - sum(before))


def execute(path: Path, accept: bool = False, wait: bool = False) -> str:
    """Run a notebook and save it, or return why it is not saved. Raises what a cell raises."""
    print(path.name, flush=True)
    before = nbformat.read(path, 4)
    page = nbformat.read(path, 4)
    here = {"metadata": {"path": path.parent}}
    client = NotebookClient(
        page, timeout=600, record_timing=False, store_widget_state=False, resources=here
    )

    wrong = [cpu_load(wait)]
    began = psutil.cpu_times()
    client.execute()
    stolen = stolen_share(began)
    if stolen > 0.02:
        wrong.append(f"{stolen:.0%} of the CPU time was stolen meanwhile.")
    wrong += [cpu_load(), *false_claims(page)]
    if any(wrong):
        return "\n".join([path.name, *filter(None, wrong), "Not saved."])

    names = f"{path.name}, saved", "now"
    difference = [*unified_diff(checked(before), checked(page), *names, lineterm="")]
    if difference and not accept:
        return "\n".join([*difference, "Not saved. --accept saves the new outputs."])

    for cell in page.cells:
        for out in cell.get("outputs", []):
            out.get("data", {}).pop(CONTROLS, None)
    page.metadata = before.metadata
    nbformat.write(page, path)
    return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--accept", action="store_true", help="save changed checked outputs, too")
    parser.add_argument("--wait", action="store_true", help="wait until the machine is idle")
    args = parser.parse_args()
    refused = []
    for notebook in args.notebooks:
        refused.append(execute(notebook, args.accept, args.wait))
    sys.exit("\n".join(filter(None, refused)) or None)
