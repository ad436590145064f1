"""The modules that go with a script: those of the notebook's folder, plain ones of the course."""

import ast
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from ..errors import CourseError
from ..machine import pick
from ..ranks import report, span

COURSE = __name__.partition(".")[0]
PLAIN = tuple(  # what needs neither a notebook nor a launch; the files get their last names
    f"{COURSE}.{name}"
    for name in ("lessons.", "ranks.traffic", "schedules", "planner", "timeline", "style", "errors")
)
DIST_UTILS = Path(__file__).parents[1] / "dist_utils.py"
IN_DIST_UTILS = {"pick": pick, "report": report, "span": span}
INSTALLED = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
PACKAGES = "site-packages", "dist-packages"


def refuse(name: str, used_by: str, why: str) -> NoReturn:
    raise CourseError(f"{name}, which {used_by} uses, cannot be exported: {why}.")


class Modules:
    """The files beside a script, from `files`; `moved` says what the script calls by which name."""

    def __init__(self) -> None:
        self.files = {"dist_utils.py": DIST_UTILS.read_text()}
        self.moved = {
            f"{value.__module__}.{value.__qualname__}": f"dist_utils.{name}"
            for name, value in IN_DIST_UTILS.items()
        }
        self._seen: set[str] = set()

    def line(self, module: str, attribute: str | None, name: str, used_by: str) -> str:
        """How the script imports `name`: `module`, or an attribute of it."""
        if is_of_course(module):
            module, attribute = self.beside(module, attribute, name, used_by)
        else:
            self.bring(module, used_by)
        if attribute is not None:
            known_as = "" if attribute == name else f" as {name}"
            return f"from {module} import {attribute}{known_as}"
        known_as = "" if name in (module, module.partition(".")[0]) else f" as {name}"
        return f"import {module}{known_as}"

    def bring(self, module: str, used_by: str) -> None:
        """Copy a module, or the package that it is of, if it is of this notebook's folder."""
        top = module.partition(".")[0]
        if top in self._seen or top in sys.stdlib_module_names or top == COURSE:
            return
        self._seen.add(top)
        try:
            spec = importlib.util.find_spec(top)
        except ValueError:  # it was made by hand
            refuse(top, used_by, "no file has this module")
        if spec is None or not _is_local(spec):
            return
        for folder in spec.submodule_search_locations or ():
            for path in sorted(Path(folder).rglob("*.py")):
                inside = path.relative_to(folder)
                package = ".".join([top, *inside.parent.parts])
                self._add(f"{top}/{inside.as_posix()}", path.read_text(), package, used_by)
        if spec.submodule_search_locations is None:
            if not str(spec.origin).endswith(".py"):
                refuse(
                    top, used_by, f"it is compiled; install it where the script runs: {spec.origin}"
                )
            self._add(f"{top}.py", Path(str(spec.origin)).read_text(), "", used_by)

    def beside(
        self, module: str, attribute: str | None, name: str, used_by: str
    ) -> tuple[str, str | None]:
        """The file that a module of the course is copied to, and what to import from it."""
        source = importlib.import_module(module)
        value = source if attribute is None else getattr(source, attribute)
        if attribute in IN_DIST_UTILS and value is IN_DIST_UTILS[attribute]:
            return "dist_utils", attribute
        if value is sys.modules[COURSE]:
            refuse(name, used_by, "import by name what it needs: from course_utils import report")
        if isinstance(value, ModuleType):
            module, attribute = value.__name__, None
        elif hasattr(source, "__path__"):  # a package, which has it from elsewhere
            module = getattr(value, "__module__", module)
        if not module.startswith(PLAIN):
            refuse(
                name, used_by, "it is a tool of this course for the notebook; take it out of there"
            )
        file = module.rpartition(".")[2]
        if module not in self._seen:
            self._seen.add(module)
            self.moved[module] = file
            text = inspect.getsource(sys.modules[module])
            self._add(f"{file}.py", text, module.rpartition(".")[0], used_by)
        return file, attribute

    def _add(self, file: str, text: str, package: str, used_by: str) -> None:
        if file in self.files:
            refuse(file, used_by, "two modules would be copied to this file; rename yours")
        self.files[file] = text  # now, or a circle of imports would not end
        self.files[file] = self.rewritten(text, package, file)

    def rewritten(self, text: str, package: str, used_by: str) -> str:
        """The source, with what it imports of the course imported from the files beside it."""
        tree = ast.parse(text)
        lines = text.split("\n")
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in sorted(nodes, key=lambda node: -node.lineno):
            places = [*imported(node, package)]
            new = dict.fromkeys(self.line(*place, used_by) for place in places)
            if any(is_of_course(module) for module, _, _ in places):
                block = textwrap.indent("\n".join(new), " " * node.col_offset)
                lines[node.lineno - 1 : node.end_lineno] = block.split("\n")
        return "\n".join(lines)


def is_of_course(module: str) -> bool:
    return module.partition(".")[0] == COURSE


def imported(
    node: ast.Import | ast.ImportFrom, package: str
) -> Iterator[tuple[str, str | None, str]]:
    """(module, attribute, name) of each name that the statement binds."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.name, None, alias.asname or alias.name
        else:
            module = "." * node.level + (node.module or "")
            module = importlib.util.resolve_name(module, package or None)
            yield module, alias.name, alias.asname or alias.name


def _is_local(spec: ModuleSpec) -> bool:
    """Whether it lies with the notebook, and no package manager put it there."""
    places = [*(spec.submodule_search_locations or [str(spec.origin)])]
    return not any(place in ("built-in", "frozen") or is_installed(place) for place in places)


def is_installed(place: str) -> bool:
    return place.startswith(INSTALLED) or not {*PACKAGES}.isdisjoint(Path(place).parts)
