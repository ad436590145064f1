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

from ..ground.errors import CourseError
from ..machine.devices import pick
from ..ranks.session import report
from ..ranks.spans import span
from .inlined import inlined, ours, public_name, stateful
from .literal import NoLiteral, literal
from .names import Names, snippet
from .sources import Namespace, Statement, bound

MISSING = object()
HELPERS = {"pick": pick, "report": report, "span": span}


@dataclass(eq=False)
class Part:
    """One statement of the script, or one of its helpers; the names it binds, and where it uses those of others."""

    text: str
    home: str  # the module it comes from; a second choice of a name starts with it
    names: dict[str, str]  # as bound in its source -> in the script
    uses: list[tuple[ast.AST, Part, str]] = field(default_factory=list)  # (where, of which part, which of its names)
    names_in: Names | None = None
    import_of: tuple[str, str | None] | None = None  # module, attribute

    @property
    def locals(self) -> set[str]:
        return self.names_in.locals if self.names_in else set()


class Collector:
    """All parts that a function needs, each after those that it uses."""

    def __init__(self) -> None:
        self.given: set[str] = set()  # names that mean something else in the script's main
        self.parts: list[Part] = []
        self.imports: dict[tuple, Part] = {}
        self.helpers: dict[str, Part] = {}
        self.known: dict[tuple[str, str], tuple[Part, str] | None] = {}  # (namespace, name)
        self.spaces: dict[str, Namespace] = {}

    def space(self, values: dict) -> Namespace:
        """The namespace of these globals, read once."""
        name = values.get("__name__", "__main__")
        if name not in self.spaces:
            self.spaces[name] = Namespace.of(values)
        return self.spaces[name]

    def need(self, space: Namespace, name: str, user: str) -> tuple[Part, str] | None:
        """The part that binds `name`, and the name it has there; None for a builtin."""
        if (space.name, name) not in self.known:
            self.known[space.name, name] = self._find(space, name, user)
        return self.known[space.name, name]

    def _find(self, space: Namespace, name: str, user: str) -> tuple[Part, str] | None:
        value = space.values.get(name, MISSING)
        if isinstance(value, type) and issubclass(value, CourseError):
            return self.helper("ValueError")
        for helper, real in HELPERS.items():
            if value is real:
                return self.helper(helper)
        statement = space.binding(name)
        if statement is None:
            return self._unbound(space, name, value, user)
        if isinstance(statement.node, (ast.Import, ast.ImportFrom)):
            return self._imported(space, statement.node, name, value, user)
        if ours(value) and not inlined(getattr(value, "__module__", None) or type(value).__module__):
            _refuse(name, user, "is a tool of this course for the notebook", "take it out of the function")
        if isinstance(statement.node, (ast.FunctionDef, ast.ClassDef)):
            return self._statement(space, statement, name)
        return self._value(space, name, value, statement, user)

    def _unbound(self, space: Namespace, name: str, value: Any, user: str) -> tuple[Part, str] | None:
        if value is MISSING:
            if hasattr(builtins, name) or name in ("__name__", "__file__", "__class__"):
                return None
            _refuse(name, user, "is not defined in any cell that ran", "run the cell that defines it, export again")
        _check_here(name, getattr(value, "__module__", None) or "", user)
        for module in space.starred():
            if getattr(sys.modules.get(module), name, MISSING) is value:
                return self._import_from(module, name, name, value, user)
        return self._value(space, name, value, None, user)

    def _imported(self, space: Namespace, node: ast.stmt, name: str, value: Any, user: str) -> tuple[Part, str]:
        alias = next(a for a in node.names if name in (a.asname, a.name, a.name.partition(".")[0]))
        if isinstance(node, ast.ImportFrom):
            package = space.values.get("__package__") or space.name.rpartition(".")[0]
            module = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
            return self._import_from(module, alias.name, name, value, user)
        _check_here(name, alias.name, user)
        if _copied(alias.name):
            _refuse_whole(name, user)
        return self.imported(alias.name, None, name)

    def _import_from(self, module: str, attribute: str, name: str, value: Any, user: str) -> tuple[Part, str]:
        _check_here(name, module, user)
        if not _copied(module):
            return self.imported(module, attribute, name)
        value = getattr(importlib.import_module(module), attribute) if value is MISSING else value
        home = getattr(value, "__module__", None) or module
        if isinstance(value, types.ModuleType):
            _refuse_whole(name, user)
        if not inlined(home):
            _refuse(name, user, "is a tool of this course for the notebook", "take it out of the function")
        attribute = getattr(value, "__name__", attribute)
        return self.need(self.space(vars(importlib.import_module(home))), attribute, user)

    def imported(self, module: str, attribute: str | None, name: str) -> tuple[Part, str]:
        """An import of the script; the same one for everybody who writes it alike."""
        key = module, attribute, name
        if key not in self.imports:
            self.imports[key] = Part("", module, {name: name}, import_of=(module, attribute))
        return self.imports[key], name

    def helper(self, name: str) -> tuple[Part, str]:
        """What the script has in place of one of the course's own functions."""
        return self.helpers.setdefault(name, Part("", "rank", {name: name})), name

    def _value(
        self, space: Namespace, name: str, value: Any, statement: Statement | None, user: str
    ) -> tuple[Part, str]:
        node = statement and statement.node
        plain = isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        try:
            text = literal(value)
        except NoLiteral:
            if not plain and (public := public_name(value)):
                _check_here(name, public[0], user)
                return self.imported(*public, public[1])
            if not plain:
                made = f"by {statement.place}, which is no plain name = …" if statement else "by no statement of a cell"
                _refuse(name, user, f"is of type {type(value).__name__}, made {made}", "write it as name = … in a cell")
            if why := stateful(value):
                _refuse(name, user, f"is {why}", "make it inside the function", statement)
            if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.value)):
                _refuse(name, user, "is made from what had its name before", "give the result another name", statement)
            return self._statement(space, statement, name)
        if plain and bound(node) == {name} and _says(node.value, value):
            return self._statement(space, statement, name)
        part = Part(f"{name} = {text}", space.name, {name: name}, names_in=snippet(f"{name} = {text}"))
        self.known[space.name, name] = part, name
        for node, used in part.names_in.globals():
            if used == "torch":
                part.uses.append((node, *self.imported("torch", None, "torch")))
        self.parts.append(part)
        return part, name

    def _statement(self, space: Namespace, statement: Statement, name: str) -> tuple[Part, str]:
        text = statement.source.statement(statement.node)
        part = self.part(space, text, f"{name} ({statement.place})")
        return part, name

    def part(self, space: Namespace, text: str, place: str) -> Part:
        """These lines as a part, with all that they use; the parts that they use come before it."""
        names = snippet(text)
        part = Part(text, space.name, {name: name for name in names.bound}, names_in=names)
        for name in names.bound:  # before it looks for what it uses: it may use itself
            self.known[space.name, name] = part, name
        self._uses(part, space, place)
        self.parts.append(part)
        return part

    def _uses(self, part: Part, space: Namespace, place: str) -> None:
        for module in part.names_in.imports_inside:
            if _copied(module):
                _refuse(f"import of {module}", place, "stands inside the function", "write it at the top of a cell")
        for node, name in part.names_in.globals():
            if name in self.given:
                continue
            value, owner = space.values.get(name, MISSING), space
            while isinstance(value, types.ModuleType) and _copied(value.__name__):
                parent = part.names_in.parents[node]
                if not isinstance(parent, ast.Attribute):
                    _refuse_whole(name, place)
                owner, name, node = self.space(vars(value)), parent.attr, parent
                value = getattr(value, name, MISSING)
            if (found := self.need(owner, name, place)) is not None:
                part.uses.append((node, *found))


def _copied(module: str) -> bool:
    """Is the module not to be imported by the script?"""
    return inlined(module) or module.partition(".")[0] == "course_utils"


def _says(node: ast.expr, value: Any) -> bool:
    """Does the expression stand for this value whatever the machine? Then it is kept as it was written."""
    try:
        return ast.literal_eval(node) == value
    except ValueError:
        torch = sys.modules.get("torch")
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        return bool(torch) and isinstance(value, (torch.dtype, torch.device)) and names == {"torch"}


def _check_here(name: str, module: str, user: str) -> None:
    top = module.partition(".")[0]
    if top in ("IPython", "ipywidgets", "google"):
        _refuse(name, user, f"comes from {module}, and only a notebook has it", "take it out of the function")
    if top == "torch_xla":
        todo = "write a script of your own that ends in torch_xla.launch(function)"
        _refuse(name, user, f"comes from {module}, and torchrun does not start the cores of a TPU", todo)


def _refuse_whole(name: str, user: str) -> NoReturn:
    why = "is a module whose functions are copied one by one, and is used here as a whole"
    _refuse(name, user, why, f"write {name}.function")


def _refuse(name: str, user: str, why: str, todo: str, statement: Statement | None = None) -> NoReturn:
    where = f" ({statement.place})" if statement else ""
    raise CourseError(f"{name}{where}, which {user} uses, cannot be exported: it {why}. What to do: {todo}.")
