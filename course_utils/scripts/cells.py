"""The statements at the top of a notebook's cells: which names they bind, and which they use."""

import ast
import linecache
import os
import re
import symtable
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

from ..errors import cell_name

PYTHON_MAGICS = ("time", "capture", "prun")  # which run the Python after them in the notebook
CONDITIONAL = (ast.If, ast.Try, ast.For, ast.While, ast.With, ast.Match, ast.AugAssign)
# What changes the process for all that follows. Not a seed, nor what torchrun sets for each rank:
# a launch gives ranks their own, and so does torchrun.
OF_PROCESS = re.compile(
    r"torch\.(\w+\.)*set_(?!num|rng|device|stream)|torch\.(use_deterministic|backends\.)"
    r"|warnings\.(filterwarnings|simplefilter)"
    r"|logging\.(basicConfig|captureWarnings|disable|(getLogger\(\)\.)?setLevel)"
    r"|os\.environ(\[\]|\.(update|setdefault|pop))?$"
)
OF_TORCHRUN = re.compile(r"\b(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_(ADDR|PORT))\b")
PART = re.compile(r"(\w+)[.[]")  # a place that is a part of what this name stands for


class Statement(NamedTuple):
    """A statement at the top of a cell."""

    node: ast.stmt
    text: str
    binds: set[str]
    uses: set[str]  # global names

    def after(self, before: Self | None) -> Self:
        """With the statement that bound the name before, where this one may need it."""
        needs_it = isinstance(self.node, CONDITIONAL) or self.uses & self.binds
        if before is None or isinstance(self.node, ast.FunctionDef | ast.ClassDef) or not needs_it:
            return self
        if self.text in before.text:  # its cell ran again
            return before
        text, uses = f"{before.text}\n{self.text}", self.uses | before.uses
        return self._replace(text=text, uses=uses)


class History(NamedTuple):
    """What the cells that ran did to each name."""

    bound: dict[str, Statement]  # by the statement that bound it last
    changed: dict[str, list[Statement]]  # since then: `name.x = 1`, `name.append(1)`


def history(namespace: dict[str, Any]) -> History:
    bound: dict[str, Statement] = {}
    changed: dict[str, list[Statement]] = defaultdict(list)
    for statement in statements(namespace):
        for name in statement.binds:
            bound[name] = statement.after(bound.get(name))
            if bound[name].text == statement.text:
                changed.pop(name, None)
        if not statement.binds:
            for name in _changes(statement.node):
                changed[name].append(statement)
    return History(bound, changed)


def _changes(node: ast.stmt) -> set[str]:
    """The names whose values the statement may change."""
    return {found[1] for place in _places(node) if (found := PART.match(place))}


def _places(node: ast.stmt) -> list[str]:
    """What a statement sets, deletes or calls: `a.b[]` for `a.b[0] = 1` and for `a.b[0](…)`."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return [_place(target) for target in targets]
        case (
            ast.AugAssign(target=target)
            | ast.AnnAssign(target=target)
            | ast.Expr(ast.Call(func=target))
        ):
            return [_place(target)]
    return []


def _place(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=name):
            return f"{_place(inner)}.{name}"
        case ast.Subscript(value=inner):
            return f"{_place(inner)}[]"
        case ast.Call(func=inner):
            return f"{_place(inner)}()"
    return ""


def of_the_process(namespace: dict[str, Any]) -> list[Statement]:
    """Statements that set something for the whole process: torch's dtype, a filter of warnings."""
    found = {}
    for statement in statements(namespace):
        for_itself = isinstance(statement.node, ast.For) or not statement.binds
        if OF_TORCHRUN.search(statement.text) or not for_itself:
            continue
        if _sets_the_process(statement.node, namespace):
            found.pop(statement.text, None)
            uses = statement.uses - statement.binds
            found[statement.text] = statement._replace(uses=uses)
    return [*found.values()]


def _sets_the_process(node: ast.stmt, namespace: dict[str, Any]) -> bool:
    """Whether the statement does that; a condition or a loop, whether all of it does."""
    if isinstance(node, ast.If | ast.For):
        return all(_sets_the_process(inner, namespace) for inner in (*node.body, *node.orelse))
    return any(OF_PROCESS.match(_in_its_module(place, namespace)) for place in _places(node))


def _in_its_module(place: str, namespace: dict[str, Any]) -> str:
    """`torch.set_default_dtype` for `t.set_default_dtype`, or however the cell calls it."""
    root = re.split(r"[.[(]", place, maxsplit=1)[0]
    value = namespace.get(root)
    if isinstance(value, ModuleType):
        known_as = value.__name__
    elif value is os.environ:
        known_as = "os.environ"
    else:
        known_as = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    return place.replace(root, known_as, 1)


def statements(namespace: dict[str, Any]) -> Iterator[Statement]:
    """Those of all cells that ran, by IPython's history or, where a front end keeps none, as
    compiled; those of the file, where the namespace is a script's.
    """
    if "get_ipython" in namespace:
        cells = [cell for cell in namespace.get("In", ()) if cell]
        files = [] if cells else [file for file in [*linecache.cache] if cell_name(file)]
        cells += ["".join(linecache.getlines(file)) for file in files]
    else:
        cells = [Path(file).read_text()] if (file := namespace.get("__file__")) else []
    for cell in cells:
        yield from _cut(cell)


def _cut(cell: str) -> Iterator[Statement]:
    """The statements of a cell, each with the lines that it has for itself."""
    try:
        nodes = ast.parse(cell).body
        for node in nodes:
            if (body := _of_magic(node)) is not None:
                yield from _cut(body)
                continue
            text = _text(cell, node, nodes)
            yield Statement(node, text, *_names(text, node))
    except SyntaxError:  # that cell did not run
        return


def _text(cell: str, node: ast.stmt, nodes: list[ast.stmt]) -> str:
    first = min([node.lineno, *(part.lineno for part in getattr(node, "decorator_list", []))])
    last = node.end_lineno or first
    others = [other for other in nodes if other is not node]
    if any(other.lineno <= last and (other.end_lineno or 0) >= first for other in others):
        return ast.get_source_segment(cell, node) or ""  # "a; b": only this one
    return "\n".join(cell.split("\n")[first - 1 : last])


def _of_magic(node: ast.stmt) -> str | None:
    """The Python of %env, or after a line such as %%time, of the calls that IPython makes."""
    match node:
        case ast.Expr(
            ast.Call(
                func=ast.Attribute(attr="run_cell_magic" | "run_line_magic"),
                args=[ast.Constant(magic), *_, ast.Constant(str(body))],
            )
        ):
            if magic in PYTHON_MAGICS:
                from IPython.core.inputtransformer2 import TransformerManager

                return TransformerManager().transform_cell(body)
            sets = re.match(r"\s*(\w+)(=|\s+\S)", body)
            if magic in ("env", "set_env") and sets:
                name = sets[1]
                return f"import os\nos.environ[{name!r}] = {os.environ.get(name, '')!r}"
    return None


def _names(text: str, node: ast.stmt) -> tuple[set[str], set[str]]:
    """The names that a statement binds at its top, and the global ones that it uses."""
    top = symtable.symtable(text, "cell", "exec")
    symbols = top.get_symbols()
    binds = {name.get_name() for name in symbols if name.is_assigned() or name.is_imported()}
    if isinstance(node, ast.Import):  # of a.b, which binds a
        binds |= {alias.name for alias in node.names if "." in alias.name and not alias.asname}
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        module = sys.modules.get(node.module or "")
        binds |= {*getattr(module, "__all__", [name for name in dir(module) if name[0] != "_"])}

    uses = set()
    for table in _all_tables(top):
        for name in table.get_symbols():
            if name.is_referenced() and (table is top or name.is_global()):
                uses.add(name.get_name())
    return binds, uses


def _all_tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _all_tables(child)
