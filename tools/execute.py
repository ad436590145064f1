"""Runs notebooks from top to bottom and saves their outputs: `make notebooks ONLY=06_ddp`, or all of them without ONLY.

Refuses drift: where a cell tagged `nbval-check-output` prints something else than what is saved, the notebook stays as
it was and the difference is shown; `--accept` takes the new output.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

CHECKED = "nbval-check-output"
KEPT = ("kernelspec", "language_info")  # of a notebook's metadata
CONTROLS = "application/vnd.jupyter.widget-view+json"  # dead without their kernel; their text says what they are
LANGUAGE = ("file_extension", "mimetype", "name", "pygments_lexer")


def printed(cell: nbformat.NotebookNode) -> list[str]:
    """The lines that a cell's outputs show as text."""
    texts = [out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs]
    return "".join(texts).splitlines()


def drift(before: nbformat.NotebookNode, after: nbformat.NotebookNode) -> list[str]:
    """Differences in the outputs that are the same on every machine, as a diff."""
    found = []
    for old, new in zip(before.cells, after.cells, strict=True):
        if CHECKED in old.metadata.get("tags", []):
            found += difflib.unified_diff(printed(old), printed(new), f"{old.id}, saved", f"{old.id}, now", lineterm="")
    return found


def execute(path: Path, accept: bool = False) -> str:
    """Run a notebook and save it; what went wrong, or nothing."""
    before, page = nbformat.read(path, 4), nbformat.read(path, 4)
    for cell in page.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    try:
        NotebookClient(page, timeout=300, record_timing=False, resources={"metadata": {"path": path.parent}}).execute()
    except CellExecutionError as error:
        return str(error)
    if (lines := drift(before, page)) and not accept:
        return "\n".join([*lines, "Not saved. --accept saves the new outputs."])
    for cell in page.cells:
        for out in cell.get("outputs", []):
            out.get("data", {}).pop(CONTROLS, None)
    page.metadata = {key: page.metadata[key] for key in KEPT if key in page.metadata}
    page.metadata["language_info"] = {key: page.metadata["language_info"][key] for key in LANGUAGE}
    nbformat.write(page, path)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--accept", action="store_true", help="save outputs that differ from the saved ones")
    chosen = parser.parse_args()
    os.environ.setdefault("COURSE_BOARD", "0")  # a board then shows this notebook's own runs alone
    failed = 0
    for path in chosen.notebooks:
        began = time.monotonic()
        wrong = execute(path, chosen.accept)
        failed += bool(wrong)
        print(f"{path.name}: {wrong or f'{time.monotonic() - began:.0f} s'}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
