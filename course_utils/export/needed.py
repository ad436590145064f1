"""What a notebook's function needs to run elsewhere: statements of cells, imports, files."""

import ast
import builtins
import inspect
import json
import linecache
import symtable
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from io import IOBase
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from ..errors import CourseError, cell_name
from ..machine import pick
from ..ranks import report, span

DIST_UTILS = Path(__file__).with_name("dist_utils.py")
IMPORTS = (  # of every script
    "import argparse",
    "import torch.distributed as dist",
    "from dist_utils import init_distributed",
    "from torch.distributed.elastic.multiprocessing.errors import record",
)
NAMES = ("argparse", "dist", "init_distributed", "main", "record")  # that every script has
LESSONS = ("course_utils.lessons.data", "course_utils.lessons.models")  # plain torch: copied
MAKERS = (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef, ast.If, ast.Try)


class Statement(NamedTuple):
    """A statement at the top of a cell."""

    node: ast.stmt
    text: str
    uses: set[str]  # global names


class Needed:
    """What a function needs: statements, each after those that it uses; imports; files."""

    def __init__(self, space: dict[str, Any]) -> None:
        self.space = space
        self.found = _statements(space)
        self.statements: dict[str, str] = {}
        self.imports = {*IMPORTS}
        self.files = {"dist_utils.py": DIST_UTILS.read_text()}  # that lie beside the script
        self._seen: set[str] = set()

    def argument(self, value: Any) -> str:
        """What stands for it in the script: a literal, or a name of the notebook's for it."""
        text = literal(value)
        if text is not None:
            return text

        own = getattr(value, "__name__", None)
        names = [name for name, other in self.space.items() if other is value]
        names = [name for name in names if name == own or name[0] != "_"]
        if not names:
            raise CourseError(
                f"export knows no name for {value!r:.60}: write name = … in a cell, and give the "
                "name."
            )
        name = own if own in names else names[0]
        self.add(name, "the call")
        return name

    def add(self, name: str, user: str) -> None:
        """Take the statement that made `name` what it is, after those of all names that it uses."""
        there = name in self.space
        if name in self._seen or name.startswith("__") or (not there and hasattr(builtins, name)):
            return
        self._seen.add(name)

        made = self.found.get(name)
        value = self.space.get(name)
        if made and isinstance(made.node, (ast.Import, ast.ImportFrom)):
            self.imports.add(self._import(name, value, user, made.node))
            self.imports |= {f"import {one}" for one in self.found if one.startswith(f"{name}.")}
            return
        if name in NAMES:
            refuse(name, user, "the script has something of that name; give it another one")

        constant = literal(value) if there else None
        if constant is None:
            made = _checked(name, user, made, value)
        elif not (made and _assigns(made.node, constant)):  # changed since, or made by the machine
            made = Statement(ast.Pass(), f"{name} = {constant}", set())
        for one in [*self.found, *sorted(made.uses - self.found.keys())]:
            if one in made.uses:
                self.add(one, name)
        self.statements[name] = made.text

    def _import(self, name: str, value: Any, user: str, node: ast.Import | ast.ImportFrom) -> str:
        """The import of this name; where it is the course's own, from the file that is copied."""
        start = f"from {node.module} import" if isinstance(node, ast.ImportFrom) else "import"
        alias = next(one for one in node.names if (one.asname or one.name.split(".")[0]) == name)
        if "course_utils" not in f"{start} {alias.name}":
            return f"{start} {ast.unparse(alias)}"

        module = getattr(inspect.getmodule(value), "__name__", "")
        if any(value is one for one in (pick, report, span)):
            file = "dist_utils"
        elif module in LESSONS:
            file = module.rpartition(".")[2]
            self.files[f"{file}.py"] = inspect.getsource(sys.modules[module])
        else:
            why = "it is a tool of this course for the notebook; take it out of the function"
            refuse(name, user, why)

        if isinstance(value, ModuleType):
            text, known_as = f"import {file}", file
        else:
            text, known_as = f"from {file} import {value.__name__}", value.__name__
        return text if name == known_as else f"{text} as {name}"


def _checked(name: str, user: str, made: Statement | None, value: Any) -> Statement:
    """The statement that made a value which is no literal, if it makes the same one elsewhere."""
    import torch

    if made is None or not isinstance(made.node, MAKERS):
        refuse(name, user, "no cell that ran makes it by def, class, import or name = …")
    state = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, IOBase)
    of_itself = name in made.uses and isinstance(made.node, ast.Assign)
    # A list of plain values, for example, to which something else was added.
    was_plain = isinstance(made.node, ast.Assign) and _is_plain(made.node.value)
    if isinstance(value, state) or of_itself or was_plain:
        kind = type(value).__name__
        refuse(name, user, f"only this kernel has that {kind} as it is; make it in the function")
    return made


def _is_plain(expression: ast.expr) -> bool:
    with suppress(ValueError, SyntaxError):
        ast.literal_eval(expression)
        return True
    return False


def _assigns(node: ast.stmt, constant: str) -> bool:
    """Whether the statement assigns just this literal."""
    wanted = ast.parse(constant, mode="eval").body
    return isinstance(node, ast.Assign) and ast.dump(node.value) == ast.dump(wanted)


def _statements(space: dict[str, Any]) -> dict[str, Statement]:
    """The statement at the top of a cell that bound each name last, by the cells' order."""
    found: dict[str, Statement] = {}
    for cell in _cells(space):
        try:
            nodes = ast.parse(cell).body
        except SyntaxError:  # that cell did not run
            continue
        taken = Counter(line for node in nodes for line in {node.lineno, node.end_lineno})
        for node in nodes:
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(one.lineno for one in decorators)])
            text = "\n".join(cell.split("\n")[first - 1 : node.end_lineno])
            if taken[node.lineno] > 1 or taken[node.end_lineno] > 1:  # "a; b": only this one
                text = ast.get_source_segment(cell, node) or text
            binds, uses = _names(text)
            if isinstance(node, ast.Import):  # of a.b, which binds a
                binds += [one.name for one in node.names if "." in one.name and not one.asname]
            for name in binds:
                made = Statement(node, text, uses)
                if isinstance(node, (ast.If, ast.Try)) and name in found:  # it may have bound it
                    before = found[name]
                    if text in before.text:  # its cell ran again
                        continue
                    made = Statement(node, f"{before.text}\n{text}", uses | before.uses)
                found[name] = made
    return found


def _cells(space: dict[str, Any]) -> list[str]:
    """The cells that ran, by IPython's history or, where a front end keeps none, as compiled."""
    cells = [cell for cell in space.get("In", ()) if cell]
    if cells:
        return cells
    return ["".join(linecache.getlines(file)) for file in [*linecache.cache] if cell_name(file)]


def _names(text: str) -> tuple[list[str], set[str]]:
    """The names that a statement binds at its top, and the global ones that it uses."""
    top = symtable.symtable(text, "cell", "exec")
    binds = [one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()]
    uses = set()
    for table in _all_tables(top):
        for one in table.get_symbols():
            if one.is_referenced() and (table is top or one.is_global()):
                uses.add(one.get_name())
    return binds, uses


def _all_tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _all_tables(child)


def literal(value: Any) -> str | None:
    """The expression of a plain value, or of a container of plain values; None for any other."""
    if type(value) is str:
        return json.dumps(value, ensure_ascii=False)
    if type(value) not in (type(None), bool, int, float, bytes, tuple, list, dict, set):
        return None
    with suppress(ValueError, SyntaxError):
        if ast.literal_eval(repr(value)) == value:
            return repr(value)
    return None


def refuse(name: str, user: str, why: str) -> NoReturn:
    raise CourseError(f"{name}, which {user} uses, cannot be exported: {why}.")
