"""A notebook's namespace without its kernel, the cells of a training, and what an exported script
writes.
"""

import ast
import io
import json
import linecache
import os
import re
import runpy
import sys
import textwrap
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course_utils import launch
from course_utils.errors import is_installed
from tests.files import ROOT, cells


def cells_of(notebook: str, *starts: str) -> list[str]:
    """The first cell of a notebook of the course that has this text, for each."""
    (path,) = (ROOT / "notebooks").glob(f"{notebook}_*.ipynb")
    sources = [cell.source for cell in cells(path, "code")]
    return [next(source for source in sources if start in source) for start in starts]


class Notebook:
    """Cells that run one after the other, as IPython keeps them: their text in `In`, their lines in
    linecache.
    """

    def __init__(self, *cells: str) -> None:
        self.module = ModuleType("__main__")
        self.values = vars(self.module)
        self.values |= {"In": [""], "get_ipython": lambda: self}
        sys.modules["__main__"] = self.module
        for cell in cells:
            self.run(cell)

    def run(self, cell: str) -> None:
        cell = textwrap.dedent(cell).strip() + "\n"
        name = f"<cell {id(self)} {len(self.values['In'])}>"
        linecache.cache[name] = len(cell), None, cell.splitlines(keepends=True), name
        self.values["In"].append(cell)
        for node in ast.parse(cell).body:  # each by itself, as IPython does
            exec(compile(ast.Module([node], []), name, "exec", dont_inherit=True), self.values)

    def run_cell_magic(self, magic: str, line: str, body: str) -> None:
        """What IPython makes of %%time."""
        exec(body, self.values)

    def run_line_magic(self, magic: str, line: str) -> None:
        """What IPython makes of %env, in which it fills in the notebook's values."""
        name, _, value = line.format(**self.values).partition("=")
        os.environ[name] = value

    def __getitem__(self, name: str):
        return self.values[name]


def outside(**more: str) -> dict[str, str]:
    """The environment of a shell that knows neither the course nor a notebook."""
    gone = ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in gone and not name.startswith("MY_")  # which cells of tests set
    }
    return kept | more


def result(script: Path, *options: str) -> Any:
    """What the function of a script returns, in a process that finds nothing of the course."""
    printed = launch(_run, script, options, ranks=1, device="cpu", init_group=False).results[0]
    return ast.literal_eval(printed.rpartition("result: ")[2])


def _run(script: Path, options: tuple[str, ...]) -> str:
    sys.path[:] = [str(script.parent), *filter(is_installed, sys.path)]
    sys.argv = [script.name, *options]
    os.chdir(script.parent)
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setitem(sys.modules, "course_utils", None)  # no import finds it
        for name in os.environ.keys() - outside().keys():
            patch.delenv(name)
        runpy.run_path(str(script), run_name="__main__")
    return out.getvalue()


def metrics(folder: Path, rank: int) -> list[dict]:
    return [
        json.loads(line)
        for line in (folder / "runs" / f"rank{rank}.jsonl").read_text().splitlines()
    ]


def training() -> Notebook:
    """Notebook 19 with `resume`, which saves as it trains and goes on where it was."""
    starts = (
        "HOSTS, EACH",
        "def network(",
        "def accident(",
        "WORK = ",
        "class Saver",
        "def load(",
        "def resume(",
    )
    sources = [re.split("\n(?:WORK|script) = ", cell)[0] for cell in cells_of("19", *starts)]
    return Notebook(*sources)


def curve(records: list[dict]) -> list[float]:
    """The loss of each step, as it was done last."""
    last = {one["step"]: one["loss"] for one in records}
    assert [*last] == [*range(len(last))]
    return [*last.values()]
