"""A notebook's namespace without its kernel, and what an exported script says when it runs."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import textwrap
from pathlib import Path

RULES = ["--isolated", "--line-length", "120"]
SELECT = ["--select", "E,F,W,I,B,UP,SIM,RUF,PIE,C4,PT,RET"]


class Notebook:
    """Cells that run one after the other, as IPython keeps them: their text in `In`, their lines in linecache."""

    def __init__(self, *cells: str) -> None:
        self.values = {"__name__": "__main__", "In": [""], "get_ipython": lambda: None}
        for cell in cells:
            self.run(cell)

    def run(self, cell: str) -> None:
        cell = textwrap.dedent(cell).strip() + "\n"
        name = f"<cell {id(self)} {len(self.values['In'])}>"
        linecache.cache[name] = len(cell), None, cell.splitlines(keepends=True), name
        self.values["In"].append(cell)
        exec(compile(cell, name, "exec", dont_inherit=True), self.values)

    def __getitem__(self, name: str):
        return self.values[name]


def clean(path: Path) -> None:
    """Ruff has nothing to say of the script, and it does not need the course."""
    for words in (["check", *SELECT], ["format", "--diff"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *words, *RULES, path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + path.read_text()
    assert "course_utils" not in path.read_text()


def outside(**more: str) -> dict[str, str]:
    """The environment of a shell that knows neither the course nor a notebook."""
    gone = ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return {name: value for name, value in os.environ.items() if name not in gone} | more


def result(path: Path, *options: str) -> object:
    """What the function returned, as plain python runs the script."""
    command = [sys.executable, "-I", path.name, *options]
    done = subprocess.run(command, cwd=path.parent, env=outside(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + path.read_text()
    return json.loads(done.stdout.splitlines()[-1])["result"]


def metrics(folder: Path, rank: int) -> list[dict]:
    return [json.loads(line) for line in (folder / "runs" / f"rank{rank}.jsonl").read_text().splitlines()]
