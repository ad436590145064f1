"""Judges the exercises of finished notebooks, `make grade FOLDER=handed_in`: prints a table, and
writes grades.csv into the folder, a row a student and a column an exercise.

The notebooks keep their names, in a folder for each student (`jane/06_ddp.ipynb`) or behind the
student's (`jane_06_ddp.ipynb`). Two run at a time, each in kernels of its own that reach no network
beyond loopback: of the cells only what an exercise needs, with `--all` all of them. What hangs,
crashes or calls `exit` costs that one exercise.
"""

import argparse
import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from course_utils.scripts.cells import statements

COURSE = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
CHECK = re.compile(r"^check\.(\w+)\(", re.MULTILINE)
MARKS = {"solved": "✓", "not yet": "○", "": "."}  # what is wrong has words in place of a state
# Becomes the command in its arguments, of which each process may take so many bytes.
LIMITED = """import os, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2)
os.execvp(sys.argv[2], sys.argv[2:])"""
# The same, where nothing but loopback is there and up (SIOCSIFFLAGS, IFF_UP).
CUT_OFF = ["unshare", "--map-root-user", "--net"]
LOOPBACK = """import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 1))
"""


def exercises(cells: list[str]) -> dict[str, int]:
    """The cell that checks each of them."""
    return {match[1]: i for i, cell in enumerate(cells) if (match := CHECK.search(cell))}


def code(page: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in page.cells if cell.cell_type == "code"]


def handed_in(folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """Student, notebook of the course, and the student's file."""
    for path in sorted(folder.rglob("*.ipynb")):
        for notebook in COURSE:
            if notebook.stem in path.stem and not path.parent.name.startswith("."):
                rest = path.relative_to(folder).with_suffix("").as_posix()
                yield rest.replace(notebook.stem, "").strip("/_-. ") or folder.name, notebook, path


def needed(cells: list[str], name: str) -> str:
    """The statements that define `name`, and those that these need."""
    plain = [TransformerManager().transform_cell(cell) for cell in cells]
    wanted, kept = {name}, []
    for statement in reversed(statements({"get_ipython": None, "In": plain})):
        if statement.binds & wanted:
            wanted |= statement.uses
            kept.append(statement.text)
    own = [cell for cell in cells if re.search(rf"^def {name}\b", cell, re.MULTILINE)]
    return "\n".join(kept[::-1] or own)  # a cell with a syntax error has no statements, and says so


def judged(source: Path, notebook: Path, limits: argparse.Namespace) -> dict[str, str]:
    """By exercise that is there "solved", "not yet", or what is wrong."""
    try:
        handed = nbformat.read(source, 4)
    except Exception:  # whatever nbformat says of a file that is cut off, or is another one
        asked = exercises(code(nbformat.read(notebook, 4)))
        return dict.fromkeys(asked, "The file is no notebook.")
    cells = code(handed)
    ends = exercises(cells)
    left = list(ends)
    verdicts: dict[str, str] = {}
    while left:
        page = nbformat.v4.new_notebook(metadata=handed.metadata)
        begin = 0
        for name in left:
            before = [cell for cell in cells[begin : ends[name]] if not CHECK.search(cell)]
            defined = "\n".join(before) if limits.all else needed(before, name)
            begin = ends[name] if limits.all else 0
            check = f"__import__('course_utils').check.{name}({name})"
            page.cells += [nbformat.v4.new_code_cell(text) for text in (defined, check)]
        ended = run(page, source.parent, limits)
        while left:
            name = left.pop(0)
            ran, page.cells = page.cells[:2], page.cells[2:]
            words = [words for cell in ran if (words := verdict(cell.outputs))]
            verdicts[name] = (words or [ended or "The check printed no verdict."])[0]
            if ended and not words:  # here; the next kernel goes on behind it
                break
    return verdicts


def verdict(outputs: list[nbformat.NotebookNode]) -> str:
    """What a cell's outputs say: an error's line, or that of the card; "" without either."""
    for out in outputs:
        if out.output_type == "error":
            return f"{out.ename}: {out.evalue}".splitlines()[0]
        text = out.get("data", {}).get("text/plain", "")
        if out.output_type == "execute_result" and text[:1] in ("✓", "○", "✗"):
            states = {mark: state for state, mark in MARKS.items()}
            return states.get(text[0]) or text.partition(". ")[2].splitlines()[0]
    return ""


def run(page: nbformat.NotebookNode, folder: Path, limits: argparse.Namespace) -> str:
    """Run the cells as far as they come, in a copy of the folder; why they came no further."""
    kernel = page.metadata.get("kernelspec", {}).get("name", "python3")
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(folder, place, dirs_exist_ok=True)
        client = NotebookClient(
            page,
            kernel_name=kernel,
            timeout=limits.seconds,
            allow_errors=True,
            shutdown_kernel="immediate",
            resources={"metadata": {"path": place}},
        )
        manager = client.create_kernel_manager()
        manager.transport, manager.ip = "ipc", f"{place}/kernel"
        command = manager.kernel_spec.argv
        if command[0] == "python":
            command[0] = sys.executable
        command[:0] = [*limits.start, str(int(limits.memory * 1e9))]
        try:
            client.execute(stderr=subprocess.DEVNULL)
        except CellTimeoutError:
            return f"It had not finished after {limits.seconds:g} s."
        except DeadKernelError:
            return "It ended the kernel."
    return ""


def table(grades: dict[str, dict[str, str]], titles: list[str]) -> Iterator[str]:
    wide = max(map(len, grades))
    for number, title in enumerate(titles, 1):
        yield f"{number:3} {title}"
    yield " ".join(["", " " * wide, *(f"{number:3}" for number in range(1, len(titles) + 1))])
    for student, row in grades.items():
        states = [row.get(title, "") for title in titles]
        marks = [MARKS.get(state, "✗") for state in states]
        solved = f"{marks.count('✓'):4} of {len(titles)}"
        yield " ".join(["", f"{student:{wide}}", *(f"{mark:>3}" for mark in marks), solved])
    yield "✓ solved  ○ not yet  ✗ wrong  . not there"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="run all cells")
    parser.add_argument("--seconds", type=float, default=300, help="for each cell that runs")
    parser.add_argument("--memory", type=float, default=8, help="GB for each process")
    limits = parser.parse_args()
    limits.start = [*CUT_OFF, sys.executable, "-c", LOOPBACK + LIMITED]
    try:
        subprocess.run([*limits.start, "-1", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        limits.start = [sys.executable, "-c", LIMITED]
        print("unshare is not there or not allowed, so that the notebooks reach the network.")

    files = [*handed_in(limits.folder)]
    if not files:
        sys.exit(f"{limits.folder} has no notebook whose name holds that of one of the course's.")
    asked = sorted({notebook for _, notebook, _ in files})
    titles = []
    for one in asked:
        names = exercises(code(nbformat.read(one, 4)))
        titles += [f"{one.stem[:2]} {name}" for name in names]
    grades: dict[str, dict[str, str]] = {student: {} for student, _, _ in files}
    with ThreadPoolExecutor(2) as pool:
        tasks = {pool.submit(judged, path, one, limits): (who, one) for who, one, path in files}
        for done, task in enumerate(as_completed(tasks), 1):
            student, notebook = tasks[task]
            for name, state in task.result().items():
                grades[student][f"{notebook.stem[:2]} {name}"] = state
            bar = "█" * (30 * done // len(tasks))
            print(f"\r{bar:░<30} {done} of {len(tasks)} notebooks", end="", flush=True)

    with (limits.folder / "grades.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["student", *titles], extrasaction="ignore")
        writer.writeheader()
        writer.writerows({"student": student} | row for student, row in grades.items())
    print("", *table(grades, titles), sep="\n")


if __name__ == "__main__":
    main()
