"""The statements at the top of a notebook's cells: their text, what they bind and what they use."""

import ast
import linecache
import symtable
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import cell_name

PYTHON_MAGICS = ("time", "capture", "prun")  # which run the Python after them in the notebook


class Statement(NamedTuple):
    """A statement at the top of a cell.

    `line` is where it begins there. `uses` has global names, also of functions inside, and `needs`
    those that it uses as it runs.
    """

    node: ast.stmt
    text: str
    line: int
    binds: set[str]
    uses: set[str]
    needs: set[str]


def statements(namespace: dict[str, Any]) -> list[Statement]:
    """Those of all cells that ran, by IPython's history or, where a front end keeps none, as
    compiled; those of the file, where the namespace is a script's.
    """
    if "get_ipython" in namespace:
        known = namespace.get("In")
        cells = [cell for cell in known if cell] if isinstance(known, list) else []
        files = [] if cells else [file for file in [*linecache.cache] if cell_name(file)]
        cells += ["".join(linecache.getlines(file)) for file in files]
    else:
        cells = [Path(file).read_text("utf-8")] if (file := namespace.get("__file__")) else []
    return [statement for cell in cells for statement in _cut(cell)]


def namespace_of(function: Callable) -> dict[str, Any]:
    """That of the cells that define it; for a module's function, that of the notebook."""
    for code in (function, type(function).__call__, getattr(function, "__init__", None)):
        own = getattr(code, "__globals__", {})
        if own.get("__name__") == "__main__":
            return own
    return vars(sys.modules["__main__"])


def _cut(cell: str) -> Iterator[Statement]:
    try:
        nodes = ast.parse(cell).body
        for node in nodes:
            if (body := _of_magic(node)) is not None:
                yield from _cut(body)
                continue
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(part.lineno for part in decorators)])
            last = node.end_lineno or first
            shared = [other for other in nodes if other.lineno <= last and _end(other) >= first]
            if len(shared) > 1:  # "a; b": only this one
                text = ast.get_source_segment(cell, node) or ""
            else:  # with its comments
                text = "\n".join(cell.split("\n")[first - 1 : last])
            yield Statement(node, text, first, *_names(text))
    except SyntaxError:  # that cell did not run
        return


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _of_magic(node: ast.stmt) -> str | None:
    """The Python after a line such as %%time, of the call that IPython makes."""
    match node:
        case ast.Expr(
            ast.Call(
                func=ast.Attribute(attr="run_cell_magic" | "run_line_magic"),
                args=[ast.Constant(magic), *_, ast.Constant(str(body))],
            )
        ) if magic in PYTHON_MAGICS:
            from IPython.core.inputtransformer2 import TransformerManager

            return TransformerManager().transform_cell(body)
    return None


def _names(text: str) -> tuple[set[str], set[str], set[str]]:
    """The names that a statement binds at its top, the global ones that it uses, and of these the
    ones outside of functions.
    """
    top = symtable.symtable(text, "cell", "exec")
    symbols = top.get_symbols()
    binds = {name.get_name() for name in symbols if name.is_assigned() or name.is_imported()}
    uses, needs = set(), set()
    tables = [(top, False)]
    for table, is_later in tables:
        inside = [
            (inner, is_later or inner.get_type() == "function") for inner in table.get_children()
        ]
        tables += inside
        for name in table.get_symbols():
            if name.is_referenced() and (table is top or name.is_global()):
                uses.add(name.get_name())
                if not is_later:
                    needs.add(name.get_name())
    return binds, uses, needs
