"""The public face: what it lists is there, documented and typed; importing it is cheap and quiet; imports one way."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import course_utils

PACKAGE = Path(course_utils.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = sorted(path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("_"))

# A module may import those on its own line and above. Private modules belong to whoever imports them.
LAYERS = (
    {"errors", "style"},
    {"timeline", "schedules", "collectives", "matmul", "cost", "data", "models"},
    {"devices"},
    {"launch", "traffic", "model_parallel", "pipeline", "tensor_parallel"},
    {"pictures", "shards", "live", "xla"},
    {"lightning"},
    {"course", "checks"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


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
    for module in [importlib.import_module(f"course_utils.{name}") for name in [*PUBLIC, "checks"]]:
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        for name, value in ((name, getattr(module, name)) for name in names):
            if callable(value) and getattr(value, "__module__", "") == module.__name__:
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
    assert len(text.splitlines()) <= 250, "split it: a file is one idea, 250 lines at most"
    if path.name != "__init__.py" or text.strip():
        assert ast.get_docstring(ast.parse(text)), "the first line says what the file is for"


def imported(path: Path, *, inside_functions: bool) -> set[str]:
    """Our own modules that a file imports: when it is itself imported, or only when some function runs."""
    package = ["course_utils", *path.relative_to(PACKAGE).parent.parts]
    found = set()

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.ImportFrom) and inside == inside_functions:
            base = package[: len(package) + 1 - node.level] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            if full == "course_utils":
                found.update(alias.name for alias in node.names)
            elif full.startswith("course_utils."):
                found.add(full.split(".")[1])
        for child in ast.iter_child_nodes(node):
            visit(child, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    visit(ast.parse(path.read_text()), False)
    return found


def graph(*, inside_functions: bool) -> dict[str, set[str]]:
    """Module (or `checks`, as a whole) -> the modules it imports."""
    edges: dict[str, set[str]] = {}
    for path in FILES:
        module = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if module != "__init__":
            edges.setdefault(module, set()).update(imported(path, inside_functions=inside_functions) - {module})
    return edges


def test_every_public_module_has_a_layer() -> None:
    assert set(PUBLIC) <= set(LEVEL), "new module: give it its place in LAYERS"


def test_imports_go_one_way() -> None:
    edges = graph(inside_functions=False)

    def reach(module: str, path: tuple[str, ...]) -> None:
        """Follow the imports of a public module through private ones; `path` is how we came here."""
        assert module not in path, f"in a circle: {' -> '.join([*path, module])}"
        for other in sorted(edges.get(module, ())):
            way = " -> ".join([*path, module, other])
            assert LEVEL.get(other, 0) <= LEVEL[(*path, module)[0]], f"imports point up: {way}"
            reach(other, (*path, module))

    for module in LEVEL:
        reach(module, ())


def test_only_pictures_are_imported_upwards_and_only_to_draw() -> None:
    for module, others in graph(inside_functions=True).items():
        if module in LEVEL:
            up = {other for other in others if LEVEL.get(other, 0) > LEVEL[module]}
            assert up <= {"pictures"}, f"{module} imports {up - {'pictures'}} inside a function"
