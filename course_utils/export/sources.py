"""Where names come from: the top-level statements of a notebook's cells, or of a module, that bind them."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
NAMELESS = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, eq=False)
class Source:
    """One cell or one module file."""

    title: str  # "Cell In[3]", "models.py"
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(self.text)
        except SyntaxError:  # that cell did not run
            return ast.Module(body=[], type_ignores=[])

    def statement(self, node: ast.stmt) -> str:
        """The statement's own lines, with a comment beside it and comments right above it."""
        lines = self.text.splitlines(keepends=True)
        first, last = first_line(node) - 1, node.end_lineno
        rest = lines[last - 1].encode()[node.end_col_offset :].decode().strip()
        if node.col_offset or (rest and not rest.startswith("#")):
            return ast.get_source_segment(self.text, node)
        while first and lines[first - 1].startswith("#") and not lines[first - 1].startswith(("#!", "# %")):
            first -= 1
        return "".join(lines[first:last]).rstrip()


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement at the top level of a source that binds a name."""

    node: ast.stmt
    source: Source

    @property
    def place(self) -> str:
        return f"{self.source.title}, line {self.node.lineno}"


@dataclass(frozen=True, eq=False)
class Namespace:
    """The global names of a notebook or a module: what they are now, and the sources that made them, oldest first."""

    name: str
    values: dict
    sources: list[Source]

    @classmethod
    def of(cls, values: dict) -> Namespace:
        """The namespace behind a function's `__globals__` or a module's `__dict__`."""
        name = values.get("__name__", "__main__")
        if "get_ipython" in values and isinstance(values.get("In"), list):
            return cls(name, values, [Source(f"Cell In[{i}]", text) for i, text in enumerate(values["In"]) if text])
        try:
            text = inspect.getsource(sys.modules[name])
        except (KeyError, OSError, TypeError):
            text = "".join(linecache.getlines(values.get("__file__") or ""))
        return cls(name, values, [Source((values.get("__file__") or name).rpartition("/")[2], text)])

    def binding(self, name: str) -> Statement | None:
        """The statement that made `name` what it is now: the latest one, or for a function the one its code is of."""
        every = ((node, source) for source in self.sources for node in statements(source.tree))
        found = [Statement(node, source) for node, source in every if name in bound(node)]
        code = getattr(unwrapped(self.values.get(name)), "__code__", None)
        for statement in reversed(found):
            other = isinstance(statement.node, ast.FunctionDef) and code and code.co_name == name
            if not other or _is_code_of(statement, code):
                return statement
        return found[-1] if found else None

    def starred(self) -> list[str]:
        """Modules of `from module import *`, the latest first."""
        nodes = [node for source in self.sources for node in statements(source.tree)]
        stars = [n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.names[0].name == "*" and not n.level]
        return stars[::-1]

    @property
    def future_annotations(self) -> bool:
        nodes = (node for source in self.sources for node in source.tree.body)
        return any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in nodes)


def first_line(node: ast.stmt) -> int:
    """Its first decorator's, where it has one."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def unwrapped(value: object) -> object:
    """The function under decorators that say what they wrap."""
    return inspect.unwrap(value) if isinstance(value, types.FunctionType) else value


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements at the top level; imports that stand under an `if` or a `try` there, too."""
    for node in tree.body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from (inner for inner in node.body if isinstance(inner, (ast.Import, ast.ImportFrom)))


def bound(node: ast.AST) -> set[str]:
    """The names that a statement binds in its own scope."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, NAMED + NAMELESS):
        return {node.name} if isinstance(node, NAMED) else set()
    here = {node.id} if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) else set()
    # Imports under `if` and `try` are statements of their own here.
    inner = (child for child in ast.iter_child_nodes(node) if not isinstance(child, (ast.Import, ast.ImportFrom)))
    return here.union(*map(bound, inner))


def _is_code_of(statement: Statement, code: types.CodeType) -> bool:
    if code.co_firstlineno != first_line(statement.node):
        return False
    compiled = "".join(linecache.getlines(code.co_filename))
    return not compiled or compiled.rstrip() == statement.source.text.rstrip()
