"""Does each notebook fit into what Binder gives: 2 GB, JupyterLab included, and two cores?

Linux, as root: a memory cgroup of that size holds JupyterLab, what executes the notebook, its kernel and all ranks, as
Binder's container would; who needs more is ended by the kernel. "kept" is what cannot be dropped: memory of processes
and /dev/shm, without files that can be read again. Name some notebooks to run only these: `binder.py 05 06`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
from bench import MB, machine, options, show, table, targets

from notebooks import FOLDER, TINY, XLA, Peak, kernel, measure

LIMIT = 2 * 2**30  # bytes, as mybinder.org gives
TREE = Path("/sys/fs/cgroup")
WAIT = 20.0  # seconds for JupyterLab to come, and for all to end


class Group:
    """A memory cgroup below the one that this process is in: version 1, or version 2."""

    def __init__(self, limit: int) -> None:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        old = next((path for _, names, path in lines if "memory" in names.split(",")), None)
        new = next((path for number, _, path in lines if number == "0"), "/")
        self.home = TREE / "memory" / old.strip("/") if old else TREE / new.strip("/")
        self.folder = (self.home if old else TREE) / "course-binder"  # version 2: where processes are, no group may be
        self.folder.mkdir(exist_ok=True)
        (self.folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
        swap, most = ("memory.memsw.limit_in_bytes", limit) if old else ("memory.swap.max", 0)
        with suppress(OSError):  # no swap is counted here
            (self.folder / swap).write_text(str(most))
        self.total, self.process, self.events = (("total_", "rss", "memory.oom_control") if old
                                                 else ("", "anon", "memory.events"))

    def numbers(self, file: str) -> dict[str, int]:
        return {line.split()[0]: int(line.split()[1]) for line in (self.folder / file).read_text().splitlines()}

    def kept(self, *_: object) -> float:
        """MB that its processes and /dev/shm hold now."""
        found = self.numbers("memory.stat")
        return (found[self.total + self.process] + found[self.total + "shmem"]) / MB

    def ended(self) -> int:
        """How many processes the limit has ended."""
        return self.numbers(self.events)["oom_kill"]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This process, and all that it starts, in the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self.home / "cgroup.procs").write_text(str(os.getpid()))
            end = time.monotonic() + WAIT
            while self.folder.exists() and time.monotonic() < end:
                with suppress(OSError):  # something in it has not ended yet
                    self.folder.rmdir()
                time.sleep(0.1)


@contextmanager
def jupyterlab() -> Iterator[None]:
    """A server beside the notebook, as Binder has it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0",
                   "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={folder}"]
        log = Path(folder) / "log"
        with open(log, "w") as out:
            server = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            end = time.monotonic() + WAIT
            while "http://127.0.0.1" not in log.read_text() and time.monotonic() < end:
                time.sleep(0.1)
            yield
        finally:
            server.terminate()
            server.wait(20)


def main() -> None:
    names = [name for name in sys.argv[1:] if name[:2].isdigit()]
    sys.argv = [name for name in sys.argv if name not in names]
    args = options(__doc__, repeat=1)
    try:
        group = Group(LIMIT)
    except OSError as error:
        sys.exit(f"No memory cgroup can be made here ({error}): this needs Linux, and root.")
    rows, largest, about = [], 0.0, machine()
    if args.quick:
        chosen = {"two ranks": nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(TINY)])}
    else:
        paths = [path for path in sorted(FOLDER.glob("*.ipynb")) if path.name.startswith(tuple(names or ("",)))]
        chosen = {path.stem: nbformat.read(path, as_version=4) for path in paths}
    with group.inside(), jupyterlab():
        for name, notebook in chosen.items():
            if kernel(notebook) == XLA:
                continue  # Binder has no room for that environment
            before, peak = group.ended(), Peak(os.getpid(), group.kept)
            seconds, _, fault = measure(notebook)
            kept, lost = peak.end(), group.ended() - before
            rows.append((name, f"{seconds:.1f}", f"{kept:.0f}", lost, fault or "clean"))
            largest = max(largest, kept / 1000)
            print(*rows[-1], file=sys.stderr, flush=True)
    show(
        f"In {LIMIT / 2**30:g} GiB with JupyterLab; a fresh kernel each. {about}.",
        table(["notebook", "wall time, s", "kept, MB", "processes ended", "ran"], rows),
        targets(
            ("largest notebook, with JupyterLab", largest, LIMIT / 1e9, "GB"),
            ("processes that the limit ended", sum(row[3] for row in rows), 0, "processes"),
            ("notebooks with an error", sum(row[4] != "clean" for row in rows), 0, "notebooks"),
        ),
    )


if __name__ == "__main__":
    main()
