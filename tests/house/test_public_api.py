"""The public face: what `course_utils` lists and notebooks import is documented and typed; importing it is cheap."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import course_utils

NOTEBOOKS = sorted((Path(course_utils.__file__).parents[1] / "notebooks").glob("*.ipynb"))
IMPORT = """
import sys, threading, psutil
import course_utils
heavy = {"torch", "numpy", "matplotlib", "IPython", "sklearn"} & set(sys.modules)
assert not heavy, f"imported: {heavy}"
assert threading.active_count() == 1 and not psutil.Process().children()
"""


def imported() -> set[tuple[str, str]]:
    """(module, name) for what notebooks import from the package."""
    found = set()
    for path in NOTEBOOKS:
        cells = [cell["source"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        lines = [line for source in cells for line in source if line.startswith("from course_utils")]
        for node in ast.parse("".join(f"{line.strip()}\n" for line in lines)).body:
            found |= {(node.module, alias.name) for alias in node.names}
    return found


def test_import_is_light_silent_and_starts_nothing() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", IMPORT], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_one_way_to_import_each_thing() -> None:
    names = course_utils.__all__
    assert all(hasattr(course_utils, name) for name in names)
    assert not {name for module, name in imported() if module != "course_utils" and name in names}


def test_what_is_public_is_documented_and_typed() -> None:
    there = {pair for pair in imported() if pair[0] != "course_utils.lightning" or find_spec("lightning")}
    pairs = there | {("course_utils", name) for name in course_utils.__all__}
    for name, value in ((name, getattr(importlib.import_module(module), name, None)) for module, name in pairs):
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name} has no docstring"
            function = vars(value).get("__init__") if inspect.isclass(value) else value
            parameters = inspect.signature(function).parameters.values() if inspect.isfunction(function) else []
            untyped = [one.name for one in parameters if one.annotation is one.empty and one.name != "self"]
            assert not untyped, f"{name}: no types for {untyped}"
