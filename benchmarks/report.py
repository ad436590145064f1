"""What the notebooks do on this machine, as a page to attach to an issue: `make report`.

Each runs from top to bottom on the kernel that it names; the files stay as they are. Numbers choose
some: `report.py 05 06`. The page, build/report.md, holds the machine's card with its versions, and
for each notebook the seconds, the largest PSS of its kernel with all ranks, the cells that failed
and the claims that were False; no path, no host's and no user's name.
"""

import getpass
import platform
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from bench import machine, memory, options, table
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "build" / "report.md"
EVERY = 0.2  # seconds between two readings of the memory


class Peak(threading.Thread):
    """The largest PSS of a process tree, MB, until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.value = 0.0
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.ended.wait(EVERY):
            self.value = max(self.value, memory(self.pid))


def measure(path: Path) -> tuple[float, float, list[str]]:
    """Seconds from the kernel's start to the last cell's end, peak MB, and what went wrong."""
    page = nbformat.read(path, as_version=4)
    client = NotebookClient(
        page, timeout=600, allow_errors=True, resources={"metadata": {"path": path.parent}}
    )
    faults = []
    began = time.perf_counter()
    with client.setup_kernel():
        peak = Peak(client.km.provisioner.process.pid)
        for number, cell in enumerate(page.cells):
            try:
                client.execute_cell(cell, number)
            except (CellTimeoutError, DeadKernelError) as error:
                faults.append(f"cell {number}: {type(error).__name__}; the rest was not run")
                break
            faults += [f"cell {number}: {fault}" for fault in wrong(cell)]
        peak.ended.set()
    return time.perf_counter() - began, peak.value, faults


def wrong(cell: nbformat.NotebookNode) -> Iterator[str]:
    """The error that a cell ended in, unless it is to; the claims of a cell that are False."""
    tags = cell.metadata.get("tags", [])
    for out in cell.get("outputs", []):
        if out.output_type == "error" and "raises-exception" not in tags:
            yield f"{out.ename}: {without_names(out.evalue)[:500]}"
        if "claim" in tags:
            lines = out.get("text", "").splitlines()
            yield from (f"claim: {line}" for line in lines if line.endswith("False"))


def without_names(text: str) -> str:
    """Without the paths, the host and the user of this machine."""
    for folder, word in ((ROOT, "."), (Path(sys.prefix), "ENV"), (Path.home(), "~")):
        text = text.replace(str(folder), word)
    for name, word in ((platform.node(), "HOST"), (getpass.getuser(), "USER")):
        text = re.sub(rf"\b{re.escape(name)}\b", word, text)
    return re.sub(r"(?<![\w.~])/(?:[\w.-]+/)+[\w.-]+", "PATH", text)


def main() -> None:
    args = options(__doc__, repeat=1)
    from course_utils import discover

    rows = []
    details = []
    for path in sorted(ROOT.glob("notebooks/[0-9][0-9]_*.ipynb")):
        on_xla = nbformat.read(path, as_version=4).metadata.kernelspec.name == "xla"
        left_out = on_xla and not (ROOT / ".venv-xla" / "ready").exists()
        if left_out or (args.only and path.name[:2] not in args.only):
            continue
        if args.quick and rows:
            break
        print(path.name, flush=True)
        seconds, peak, faults = measure(path)
        rows.append((path.stem, f"{seconds:.0f}", f"{peak:.0f}", len(faults)))
        details += [f"- {path.stem}, {fault}" for fault in faults]

    header = ["notebook", "s", "peak PSS, MB", "cells that failed, claims that were False"]
    report = [
        f"# What the notebooks did\n\n{machine()}\n\n```\n{discover()!r}\n```",
        table(header, rows),
        "\n".join(details) or "No cell failed, and every claim was True.",
        "Please attach this page to an issue of the repository, also where nothing failed.",
    ]
    page = without_names("\n\n".join(report))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(f"{page}\n", encoding="utf-8")
    print(f"{page}\n\nThis page is {PAGE.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
