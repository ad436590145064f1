"""The names in a few lines of code: which are global, which local, and where each stands."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..ground.errors import CourseError
from .sources import bound


@dataclass(frozen=True, eq=False)
class Names:
    """The names in a snippet of code."""

    text: str
    tree: ast.Module
    used: set[str]  # global names, those that it binds included
    locals: set[str]  # of any function or class in it

    @property
    def bound(self) -> set[str]:
        return set().union(*map(bound, self.tree.body))

    @cached_property  # asked for at every name
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @property
    def imports_inside(self) -> Iterator[str]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                yield node.module or "course_utils"
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)

    def globals(self) -> Iterator[tuple[ast.Name, str]]:
        """Each place where a global name stands, in the order of the text."""
        names = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.id in self.used]
        for node in sorted(names, key=lambda node: (node.lineno, node.col_offset)):
            yield node, node.id

    def replaced(self, changes: list[tuple[ast.AST, str]]) -> str:
        """The text with each node's lines replaced, and `def name` where what it binds is renamed."""
        lines = self.text.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))

        def index(line: int, column: int) -> int:
            return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

        text = self.text
        spots = [(index(n.lineno, n.col_offset), index(n.end_lineno, n.end_col_offset), n, to) for n, to in changes]
        for start, end, node, to in sorted(spots, key=lambda spot: -spot[0]):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                start = text.index(node.name, start + len("def" if isinstance(node, ast.FunctionDef) else "class"))
                end = start + len(node.name)
            elif text[start:end] != ast.unparse(node):  # Python 3.11 does not know where in an f-string it is
                raise CourseError(
                    f"{ast.unparse(node)} stands in an f-string, and is to be written otherwise in the script: "
                    "give it a name in the line before"
                )
            text = text[:start] + to + text[end:]
        return text


def snippet(text: str) -> Names:
    """The names in these lines."""
    used, local = set(), set()

    def look(table: symtable.SymbolTable) -> None:
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if top or symbol.is_global():
                used.add(symbol.get_name())
            elif not symbol.is_free():
                local.add(symbol.get_name())
        for child in table.get_children():
            look(child)

    look(symtable.symtable(text, "cell", "exec"))
    return Names(text, ast.parse(text), used, local)
