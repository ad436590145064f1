"""The course's own files, and files as `/proc`, `/sys` and `/dev` have them, for tests that read a
folder in their place.
"""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(notebook: Path, kind: str) -> list[Any]:
    """Its cells of this kind, "code" or "markdown"."""
    import nbformat  # takes a second, and ranks import a test's modules, too

    return [cell for cell in nbformat.read(notebook, 4).cells if cell.cell_type == kind]


def write(root: Path, files: dict[str, object]) -> Path:
    """Write {path below root: text}; the root again."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root
