"""Every notebook from top to bottom: wall time, and the largest PSS of its kernel and all its ranks together.

Each runs on the kernel that it names; the files stay as they are. Numbers choose some: `notebooks.py 05 06`.
"""

import threading
import time
from pathlib import Path

import nbformat
from bench import machine, memory, options, table
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent.parent / "notebooks"
EVERY = 0.2  # seconds between two looks at the memory


class Peak(threading.Thread):
    """The largest PSS of a process tree, MB, until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.value, self.ended = pid, 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.ended.wait(EVERY):
            self.value = max(self.value, memory(self.pid))


def measure(path: Path) -> tuple[str, str, str, str]:
    """A row: its name, seconds from starting the kernel to the end of the last cell, peak MB, and what went wrong."""
    notebook, fault = nbformat.read(path, as_version=4), "clean"
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": FOLDER}})
    began = time.perf_counter()
    with client.setup_kernel():
        peak = Peak(client.km.provisioner.process.pid)
        try:
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
        except CellExecutionError as error:
            fault = f"cell {index} raised {error.ename}"
        seconds = time.perf_counter() - began
        peak.ended.set()
    return path.stem, f"{seconds:.1f}", f"{peak.value:.0f}", fault


def main() -> None:
    args = options(__doc__, repeat=1)
    paths = [
        path
        for path in sorted(FOLDER.glob("*.ipynb"))
        if not args.only or path.name[:2] in args.only
    ]
    print(f"A fresh kernel each. {machine()}\n")
    rows = [
        measure(path) for path in paths[: 1 if args.quick else None] for _ in range(args.repeat)
    ]
    print(table(["notebook", "wall time, s", "peak PSS, MB", "ran"], rows))


if __name__ == "__main__":
    main()
