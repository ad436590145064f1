"""The files beside a script: the package `dist_utils`, with what it needs of this course, and the
modules that lie with the notebook.
"""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ..errors import CourseError, is_installed

COURSE = __name__.partition(".")[0]
PACKAGE = Path(__file__).parents[1]
IMPORTS_IT = re.compile(rf"\b((?:from|import)\s+){COURSE}\b")
OWN = ("pick", "report", "span")  # which dist_utils has for a script
STAND_INS = {  # for the course's modules that have these for a notebook
    ("machine", "pick"): "from . import pick\n",
    ("ranks.metrics", "report"): "from .. import report\n",
    ("ranks.spans", "span"): "from .. import span\n",
}
# What needs neither a notebook nor a launch.
PLAIN = (
    *("lessons.", "ranks.traffic", "schedules", "planner", "timeline", "style", "errors"),
    *("joining", "records", "kernel_values"),
)


def in_the_script(name: str) -> str:
    """How the script calls a module."""
    first, dot, rest = name.partition(".")
    return f"dist_utils{dot}{rest}" if first == COURSE else name


def refuse(name: str, used_by: str, why: str) -> NoReturn:
    raise CourseError(f"{name}, which {used_by} uses, cannot be exported: {why}.")


class Copies:
    """Texts of files, by their paths beside the script."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self._copy(PACKAGE / "dist_utils.py", "dist_utils/__init__.py", COURSE, "the script")

    def line(self, module: str, attribute: str | None, name: str, used_by: str) -> str:
        """How the script imports `name`: `module`, or an attribute of it."""
        module = in_the_script(self.bring(module, attribute, used_by))
        if attribute is None:
            known_as = "" if name in (module, module.partition(".")[0]) else f" as {name}"
            return f"import {module}{known_as}"
        known_as = "" if attribute == name else f" as {name}"
        return f"from {module} import {attribute}{known_as}"

    def rewritten(self, text: str, used_by: str, package: str = "") -> str:
        """The source of a statement or a module, with what it imports of the course imported from
        the files beside the script.
        """
        lines = text.split("\n")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for module, attribute, _ in imported(node, package):
                place = self.bring(module, attribute, used_by)
                if place != module:
                    why = f"it has to be: from {place} import {attribute}"
                    refuse(f"from {module} import {attribute}", used_by, why)
            first = node.lineno - 1
            lines[first] = IMPORTS_IT.sub(r"\1dist_utils", lines[first])
        return "\n".join(lines)

    def bring(self, module: str, attribute: str | None, used_by: str) -> str:
        """Copy a module, or the attribute that is one, if it is the course's or lies with the
        notebook. The result is the module that has the attribute, without re-exports.
        """
        root, _, inner = module.partition(".")
        if root != COURSE:
            self._bring_own(root, used_by)
            return module
        if not inner and attribute in OWN:
            return module
        inside = f"{inner}.{attribute}".removeprefix(".")
        if attribute and _file_of(inside).exists():
            inner = inside
        elif attribute and not _file_of(inner).exists():  # a package has it from elsewhere
            module = getattr(sys.modules[module], attribute).__module__
            inner = module.partition(".")[2]
        file = f"dist_utils/{inner.replace('.', '/')}.py"
        if text := STAND_INS.get((inner, attribute)):
            self._add_packages(file)
            self.files[file] = text
        elif not inner.startswith(PLAIN):
            why = "it is a tool of this course for the notebook; take it out of there"
            if module == COURSE:
                why = "import by its name what a script has, as in from course_utils import report"
            refuse(attribute or module, used_by, why)
        elif file not in self.files:
            self._add_packages(file)
            self._copy(_file_of(inner), file, f"{COURSE}.{inner}".rpartition(".")[0], used_by)
        return module

    def _add_packages(self, file: str) -> None:
        for folder in [*Path(file).parents][:-2]:
            self.files.setdefault(f"{folder.as_posix()}/__init__.py", "")

    def _bring_own(self, root: str, used_by: str) -> None:
        """A module or a package that no package manager has installed."""
        try:
            spec = importlib.util.find_spec(root)
        except ValueError:  # it was made by hand
            refuse(root, used_by, "no file has this module")
        if spec is None or spec.origin in ("built-in", "frozen"):
            return
        places = [Path(place) for place in spec.submodule_search_locations or [str(spec.origin)]]
        if any(is_installed(str(place)) for place in places):
            return
        for place in places:
            for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
                file = path.relative_to(place.parent)
                if path.suffix != ".py":
                    why = f"it is compiled; install it where the script runs: {path}"
                    refuse(root, used_by, why)
                if file.as_posix() not in self.files:
                    package = ".".join(file.parent.parts)
                    self._copy(path, file.as_posix(), package, used_by)

    def _copy(self, path: Path, file: str, package: str, used_by: str) -> None:
        if file.startswith("dist_utils") and PACKAGE not in path.parents:
            refuse(file, used_by, "the script has a package of this name; rename yours")
        try:
            text = path.read_text("utf-8-sig")
        except UnicodeDecodeError:
            refuse(file, used_by, "it is not in UTF-8; save it so")
        self.files[file] = text  # now, or a circle of imports would not end
        with suppress(SyntaxError):  # nobody can import it
            self.files[file] = self.rewritten(text, used_by, package)


def _file_of(inner: str) -> Path:
    return PACKAGE / f"{inner.replace('.', '/')}.py"


def imported(node: ast.AST, package: str = "") -> Iterator[tuple[str, str | None, str]]:
    """(module, attribute, name) of each name that the statement imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, None, alias.asname or alias.name
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            module = importlib.util.resolve_name(
                "." * node.level + (node.module or ""), package or None
            )
            yield module, alias.name, alias.asname or alias.name
