"""A few lines of code: which of their names are global and which local, where they stand, and others in their place."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ..errors import CourseError


@dataclass(frozen=True, eq=False)
class Snippet:
    """The names in a few lines of code."""

    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def _scopes(self) -> list[symtable.SymbolTable]:
        """The table of the lines themselves, then those of the functions and classes in them."""
        found = [symtable.symtable(self.text, "cell", "exec")]
        for table in found:
            found += table.get_children()
        return found

    @cached_property
    def bound(self) -> set[str]:
        """Global names that it binds."""
        return {one.get_name() for one in self._scopes[0].get_symbols() if one.is_assigned() or one.is_imported()}

    @cached_property
    def locals(self) -> set[str]:
        """Of any function or class in it."""
        inner = [one for table in self._scopes[1:] for one in table.get_symbols()]
        return {one.get_name() for one in inner if not one.is_global() and not one.is_free()}

    def globals(self) -> Iterator[ast.Name]:
        """Each place where a global name stands, in the order of the text."""
        used = {one.get_name() for one in self._scopes[0].get_symbols()}
        used |= {one.get_name() for table in self._scopes[1:] for one in table.get_symbols() if one.is_global()}
        names = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.id in used]
        return iter(sorted(names, key=lambda node: (node.lineno, node.col_offset)))

    def replaced(self, changes: list[tuple[ast.AST, str]]) -> str:
        """The text with others in the place of these nodes; of a `def` or a `class`, in the place of its name."""
        text = self.text.encode()  # a node's columns count bytes
        starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
        for node, to in sorted(changes, key=lambda change: (-change[0].lineno, -change[0].col_offset)):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            old = ast.unparse(node).encode()
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                old = node.name.encode()
                start = text.index(old, text.index(b" ", start))
                end = start + len(old)
            if text[start:end] != old:  # Python 3.11 does not know where in an f-string it is
                raise CourseError(
                    f"{old.decode()} stands in an f-string, and is to be written otherwise in the script. "
                    "What to do: give it a name in the line before."
                )
            text = text[:start] + to.encode() + text[end:]
        return text.decode()
