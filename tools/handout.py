"""Writes the notebooks as a student gets them to build/handout, `make handout`: with empty
exercises, as they are in the repository's last commit, and without outputs.
"""

import subprocess
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]


def handed_out(text: str) -> nbformat.NotebookNode:
    page = nbformat.reads(text, 4)
    for cell in page.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return page


if __name__ == "__main__":
    folder = ROOT / "build" / "handout"
    folder.mkdir(parents=True, exist_ok=True)
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        show = ["git", "show", f"HEAD:notebooks/{notebook.name}"]
        committed = subprocess.run(show, cwd=ROOT, check=True, capture_output=True, text=True)
        nbformat.write(handed_out(committed.stdout), folder / notebook.name)
    print(folder)
