"""Every notebook from top to bottom: wall time, and the peak PSS of its kernel and all ranks together.

Each runs on the kernel that it names; those of .venv-xla are left out where that is missing. The
notebooks on disk stay as they are. Name some of them to run only these: `notebooks.py 05 06`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
from bench import machine, memory, options, show, table, targets
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
XLA = "xla"  # the kernel of the TPU and Lightning notebooks; `make env` registers it
EVERY = 0.2  # seconds between two looks at the memory

TINY = """
import torch
from course_utils import launch

def work():
    return 1

assert launch(work, ranks=2, device="cpu").results == [1, 1]
"""


class Peak(threading.Thread):
    """The largest PSS of a process tree, MB, until it is stopped; or the largest of what `look` says of it."""

    def __init__(self, pid: int, look: Callable[[int], float] = memory) -> None:
        super().__init__(daemon=True)
        self.pid, self.look, self.value, self._ended = pid, look, 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ended.wait(EVERY):
            self.value = max(self.value, self.look(self.pid))

    def end(self) -> float:
        self._ended.set()
        self.join()
        return self.value


def kernel(notebook: nbformat.NotebookNode) -> str:
    return notebook.metadata.get("kernelspec", {}).get("name", "python3")


def measure(notebook: nbformat.NotebookNode) -> tuple[float, float, str]:
    """Seconds from starting the kernel to the end of the last cell, peak MB, and what went wrong."""
    there = {"metadata": {"path": FOLDER}}
    client = NotebookClient(notebook, timeout=300, kernel_name=kernel(notebook), resources=there)
    began, fault, peak = time.perf_counter(), "", None
    with client.setup_kernel():
        peak = Peak(client.km.provisioner.process.pid)
        try:
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
        except CellExecutionError as error:
            fault = f"cell {index} raised {error.ename}"
        seconds = time.perf_counter() - began
        return seconds, peak.end(), fault


def main() -> None:
    names = [name for name in sys.argv[1:] if name[:2].isdigit()]
    sys.argv = [name for name in sys.argv if name not in names]
    args = options(__doc__, repeat=1)
    about = machine()
    if args.quick:
        chosen = {"two ranks": nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(TINY)])}
    else:
        paths = [path for path in sorted(FOLDER.glob("*.ipynb")) if path.name.startswith(tuple(names or ("",)))]
        chosen = {path.stem: nbformat.read(path, as_version=4) for path in paths}
    rows, times, largest = [], [0.0], {}
    for name, notebook in chosen.items():
        on = kernel(notebook)
        if on == XLA and not (ROOT / ".venv-xla" / "ready").exists():
            rows.append((name, "-", "-", "left out: no .venv-xla"))
            continue
        for _ in range(args.repeat):
            seconds, megabytes, fault = measure(notebook)
            rows.append((name, f"{seconds:.1f}", f"{megabytes:.0f}", fault or "clean"))
            times.append(seconds)
            largest[on] = max(largest.get(on, 0.0), megabytes / 1000)
    show(
        f"A fresh kernel each. {about}.",
        table(["notebook", "wall time, s", "peak PSS, MB", "ran"], rows),
        targets(
            ("longest notebook", max(times), 60, "s"),
            *((f"largest notebook on kernel {on}", gb, 2 if on == XLA else 1.5, "GB") for on, gb in largest.items()),
            ("notebooks with an error", sum("raised" in row[3] for row in rows), 0, "notebooks"),
        ),
    )


if __name__ == "__main__":
    main()
