"""The public face: what it lists is there, documented and typed; importing it is cheap and quiet."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import course_utils

PACKAGE = Path(course_utils.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
LESSONS = sorted(path.stem for path in (PACKAGE / "lessons").glob("[a-z]*.py"))
# What notebooks import: the rooms' faces, and modules that are their own face.
FACES = [*ROOMS, *(f"lessons.{name}" for name in LESSONS), "planner", "schedules"]


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def test_flat_face_and_all_agree() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert sorted(imported) == sorted(course_utils.__all__)
    assert len(set(course_utils.__all__)) == len(course_utils.__all__)
    for name in course_utils.__all__:
        assert hasattr(course_utils, name)


IMPORT = """
import sys, threading
import course_utils
heavy = {"torch", "numpy", "matplotlib", "IPython", "sklearn"} & set(sys.modules)
assert not heavy, f"imported: {heavy}"
assert threading.active_count() == 1, threading.enumerate()
import psutil
assert not psutil.Process().children(recursive=True)
"""


def test_import_is_light_silent_and_starts_nothing() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", IMPORT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


def public_callables() -> dict[str, object]:
    """Every public function, class, method and property of every public module, by its full name."""
    found: dict[str, object] = {}
    for module in [importlib.import_module(f"course_utils.{name}") for name in FACES]:
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        for name, value in ((name, getattr(module, name)) for name in names):
            if callable(value) and getattr(value, "__module__", "").startswith(module.__name__):
                found[f"{value.__module__}.{name}"] = value
                if inspect.isclass(value):
                    members = {k: v for k, v in vars(value).items() if not k.startswith("_")}
                    found |= {f"{value.__module__}.{name}.{k}": v for k, v in members.items() if is_function(v)}
    for name in course_utils.__all__:
        if callable(value := getattr(course_utils, name)):
            found.setdefault(f"{value.__module__}.{name}", value)
    return found


def is_function(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | staticmethod | classmethod)


@pytest.mark.parametrize(("name", "value"), public_callables().items(), ids=public_callables())
def test_public_callable_is_documented_and_typed(name: str, value: object) -> None:
    # A class may explain its properties together; a function explains itself.
    assert isinstance(value, property) or (inspect.getdoc(value) or "").strip(), f"{name} has no docstring"
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if inspect.isclass(function):
        function = vars(function).get("__init__")
    if not inspect.isfunction(function):
        return
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.name not in ("self", "cls"):
            assert parameter.annotation is not inspect.Parameter.empty, f"{name}: {parameter.name} has no annotation"
    assert signature.return_annotation is not inspect.Signature.empty, f"{name} has no return annotation"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_file_is_one_idea(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 320, "split it: a file is one idea, 320 lines at most"
    if path.name != "__init__.py" or text.strip():
        assert ast.get_docstring(ast.parse(text)), "the first line says what the file is for"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for_and_where_to_start(room: str) -> None:
    about = inspect.getdoc(importlib.import_module(f"course_utils.{room}"))
    assert about, f"{room}/__init__.py has no docstring"
    assert 2 <= len(about.splitlines()) <= 6, f"{room}/__init__.py says it in a few lines"


def test_one_way_to_import_each_thing() -> None:
    """What the face hands out, no notebook imports from a room."""
    for path in sorted((PACKAGE.parent / "notebooks").glob("*.ipynb")):
        for room, names in re.findall(r'"from course_utils\.([\w.]+) import ([\w, ]+)', path.read_text()):
            again = set(names.split(", ")) & set(course_utils.__all__)
            assert not again, f"{path.name} imports {again} from {room}: take it from course_utils"
