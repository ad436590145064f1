"""What a function needs, found from its names: statements of other cells, the course's own source, imports, values."""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
import types
from dataclasses import dataclass, field
from importlib.util import resolve_name
from typing import Any, NoReturn

from ..errors import CourseError
from ..machine import pick
from ..ranks.report import report
from ..ranks.spans import span
from .literal import NoLiteral, literal
from .origin import copied, home, public_name, stateful, tool
from .snippet import Snippet
from .sources import Namespace, Statement

MISSING = object()
PICK_CPU = '''\
def pick() -> torch.device:
    """This rank's device."""
    return torch.device("cpu")'''


@dataclass(eq=False)
class Part:
    """One statement or import of the script; the names it binds, and where it uses those of others."""

    home: str  # the module it comes from; a second choice of a name starts with it
    names: dict[str, str]  # as bound in its source -> in the script
    snippet: Snippet | None = None
    import_of: tuple[str, str | None] | None = None  # module, attribute
    uses: list[tuple[ast.AST, Part, str]] = field(default_factory=list)  # (where, of which part, which of its names)


Found = tuple[Part, str]  # a part, and which of the names that it binds


@dataclass(frozen=True)
class Elsewhere:
    """Lines of a part whose names are those of another namespace, or given."""

    rows: range
    space: Namespace
    given: dict[str, Found] = field(default_factory=dict)


class Collector:
    """All parts that a function needs, each after those that it uses."""

    def __init__(self, *, cpu: bool) -> None:
        self.cpu = cpu
        self.parts: list[Part] = []
        self.imports: dict[tuple, Part] = {}
        self.known: dict[tuple[str, str], Found | None] = {}  # (namespace, name)
        self.spaces: dict[str, Namespace] = {}
        self.standins = self.space(vars(importlib.import_module(".standins", __package__)))
        self.plain = Elsewhere(range(sys.maxsize), self.standins)  # of values: `float`, `torch`

    def space(self, values: dict) -> Namespace:
        """The namespace of these globals, read once."""
        name = values.get("__name__", "__main__")
        if name not in self.spaces:
            self.spaces[name] = Namespace.of(values)
        return self.spaces[name]

    def need(self, space: Namespace, name: str, user: str) -> Found | None:
        """The part that binds `name`, and the name it has there; None for a builtin."""
        if (space.name, name) not in self.known:
            self.known[space.name, name] = self._find(space, name, user)
        return self.known[space.name, name]

    def imported(self, module: str, attribute: str | None, name: str, user: str) -> Found:
        """An import of the script; the same one for everybody who writes it alike."""
        top = module.partition(".")[0]
        if top in ("IPython", "ipywidgets", "google"):
            _refuse(name, user, f"comes from {module}, and only a notebook has it", "take it out of the function")
        if top == "torch_xla":
            todo = "write a script of your own that ends in torch_xla.launch(function)"
            _refuse(name, user, f"comes from {module}, and torchrun does not start the cores of a TPU", todo)
        key = module, attribute, name
        if key not in self.imports:
            self.imports[key] = Part(module, {name: name}, import_of=(module, attribute))
        return self.imports[key], name

    def part(self, space: Namespace, text: str, place: str, other: Elsewhere | None = None) -> Part:
        """These lines as a part, with all that they use; the parts that they use come before it."""
        snippet = Snippet(text)
        part = Part(space.name, {name: name for name in snippet.bound}, snippet)
        for name in snippet.bound:  # before it looks for what it uses: it may use itself
            self.known[space.name, name] = part, name
        for node in ast.walk(snippet.tree):
            inside = [node.module or "course_utils"] if isinstance(node, ast.ImportFrom) else []
            inside += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in inside:
                if copied(module) or tool(module):
                    _refuse(f"import of {module}", place, "stands inside the function", "write it at the top of a cell")
        for node in snippet.globals():
            there = other is not None and node.lineno in other.rows
            found = other.given.get(node.id) if there else None
            there = there and node.id not in snippet.bound
            if not found:
                node, found = self._use(snippet, node, other.space if there else space, place)
            if found:
                part.uses.append((node, *found))
        self.parts.append(part)
        return part

    def _use(self, snippet: Snippet, node: ast.AST, space: Namespace, place: str) -> tuple[ast.AST, Found | None]:
        """The place of a name, or of `module.name` where the module is copied; and what it stands for."""
        name = node.id
        value = space.values.get(name, MISSING)
        while isinstance(value, types.ModuleType) and (copied(value.__name__) or tool(value.__name__)):
            node = snippet.parents[node]
            if not isinstance(node, ast.Attribute):
                why = "is a module whose functions are copied one by one, and is used here as a whole"
                _refuse(name, place, why, f"write {name}.function")
            space, name = self.space(vars(value)), node.attr
            value = getattr(value, name, MISSING)
        above = snippet.parents.get(node)
        if value is pick and isinstance(above, ast.Call) and (above.args or above.keywords):
            why = "is given arguments, and the script knows pick() alone, this rank's device"
            _refuse(ast.unparse(above), place, why, 'write pick(), or torch.device("cpu") for the CPU')
        return node, self.need(space, name, place)

    def _find(self, space: Namespace, name: str, user: str) -> Found | None:
        if name.startswith("__"):  # __name__, __doc__, …: the script has its own
            return None
        value = space.values.get(name, MISSING)
        if isinstance(value, type) and issubclass(value, CourseError):
            return Part("builtins", {"ValueError": "ValueError"}), "ValueError"
        if value is pick and self.cpu:
            return self.part(self.standins, PICK_CPU, user), "pick"
        if any(value is one for one in (pick, report, span)):
            return self.need(self.standins, value.__name__, user)
        if tool(home(value)):
            _refuse(name, user, "is a tool of this course for the notebook", "take it out of the function")
        statement = space.binding(name)
        node = statement and statement.node
        if isinstance(node, ast.Import):
            alias = next(one for one in node.names if name in (one.asname, one.name.partition(".")[0]))
            return self.imported(alias.name, None, name, user)
        if isinstance(node, ast.ImportFrom):
            alias = next(one for one in node.names if name in (one.asname, one.name))
            package = space.values.get("__package__") or space.name.rpartition(".")[0]
            module = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
            return self._import_from(module, alias.name, name, user)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            return self._statement(space, statement, name)
        if value is MISSING and hasattr(builtins, name):
            return None
        if value is MISSING:
            _refuse(name, user, "is not defined in any cell that ran", "run the cell that defines it, export again")
        for module in space.stars() if statement is None else ():
            if getattr(sys.modules.get(module), name, MISSING) is value:
                return self._import_from(module, name, name, user)
        return self._value(space, name, value, statement, user)

    def _import_from(self, module: str, attribute: str, name: str, user: str) -> Found | None:
        if copied(module) or tool(module):
            return self.need(self.space(vars(importlib.import_module(module))), attribute, user)
        return self.imported(module, attribute, name, user)

    def _value(self, space: Namespace, name: str, value: Any, statement: Statement | None, user: str) -> Found:
        """A global that no cell defines or imports: its value where that has an expression, else how it was made."""
        node = statement and statement.node
        plain = isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        try:
            text = literal(value)
        except NoLiteral:
            pass
        else:
            if plain and statement.names == {name} and _says(node.value, value):
                return self._statement(space, statement, name)
            return self.part(space, f"{name} = {text}", user, self.plain), name
        if not plain and (public := public_name(value)):
            return self.imported(*public, public[1], user)
        if not plain:
            made = f"by {statement.place}, which is no plain name = …" if statement else "by no statement of a cell"
            _refuse(name, user, f"is of type {type(value).__name__}, made {made}", "write it as name = … in a cell")
        if why := stateful(value):
            _refuse(name, user, f"is {why}", "make it inside the function", statement)
        if any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node.value)):
            _refuse(name, user, "is made from what had its name before", "give the result another name", statement)
        return self._statement(space, statement, name)

    def _statement(self, space: Namespace, statement: Statement, name: str) -> Found:
        return self.part(space, statement.text, f"{name} ({statement.place})"), name


def _says(node: ast.expr, value: Any) -> bool:
    """Is it this value, whatever the machine? Then it is kept as it was written."""
    try:
        return ast.literal_eval(node) == value
    except ValueError:
        return False


def _refuse(name: str, user: str, why: str, todo: str, statement: Statement | None = None) -> NoReturn:
    where = f" ({statement.place})" if statement else ""
    raise CourseError(f"{name}{where}, which {user} uses, cannot be exported: it {why}. What to do: {todo}.")
