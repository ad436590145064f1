"""Where names come from: the top-level statements of a notebook's cells, or of a module, that bind them."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import types
from dataclasses import dataclass
from functools import cached_property

from ..errors import cell_name
from .snippet import Snippet


@dataclass(frozen=True, eq=False)
class Source:
    """One cell or one module file."""

    title: str  # "Cell In[3]", "models.py"
    text: str

    @cached_property
    def statements(self) -> list[Statement]:
        """Those at the top level, and imports under an `if` or a `try` there, after it."""
        try:
            tree = ast.parse(self.text)
        except SyntaxError:  # that cell did not run
            return []
        found = []
        for node in tree.body:
            inner = node.body if isinstance(node, (ast.If, ast.Try)) else []
            found += [node, *(one for one in inner if isinstance(one, (ast.Import, ast.ImportFrom)))]
        return [Statement(node, self) for node in found]


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement at the top level of a source."""

    node: ast.stmt
    source: Source

    @property
    def place(self) -> str:
        return f"{self.source.title}, line {self.node.lineno}"

    @cached_property
    def names(self) -> set[str]:
        """Those that it binds."""
        try:
            return Snippet(ast.get_source_segment(self.source.text, self.node)).bound
        except SyntaxError:  # an `await` there
            return set()

    @property
    def first_line(self) -> int:
        """That of its first decorator, where it has one."""
        return min([self.node.lineno, *(one.lineno for one in getattr(self.node, "decorator_list", []))])

    @property
    def text(self) -> str:
        """The statement's own lines, with a comment beside it and comments right above it."""
        lines = self.source.text.splitlines(keepends=True)
        first, last = self.first_line - 1, self.node.end_lineno
        rest = lines[last - 1].encode()[self.node.end_col_offset :].decode().strip()
        if self.node.col_offset or (rest and not rest.startswith("#")):
            return ast.get_source_segment(self.source.text, self.node)
        while first and lines[first - 1].startswith("#") and not lines[first - 1].startswith(("#!", "# %")):
            first -= 1
        return "".join(lines[first:last]).rstrip()

    def made(self, code: types.CodeType) -> bool:
        """Is it the `def` of this function's code? Another cell may hold the same one, and not have come to it."""
        compiled = "".join(linecache.getlines(code.co_filename))
        same = not compiled or compiled.rstrip() == self.source.text.rstrip()
        return same and code.co_firstlineno == self.first_line


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
            return cls(name, values, _cells(values["In"]))
        try:
            text = inspect.getsource(sys.modules[name])
        except (KeyError, OSError, TypeError):
            text = "".join(linecache.getlines(values.get("__file__") or ""))
        return cls(name, values, [Source((values.get("__file__") or name).rpartition("/")[2], text)])

    @property
    def statements(self) -> list[Statement]:
        return [statement for source in self.sources for statement in source.statements]

    def binding(self, name: str) -> Statement | None:
        """The statement that made `name` what it is now: the latest one, or for a function the one its code is of."""
        found = [statement for statement in self.statements if name in statement.names][::-1]
        value = self.values.get(name)
        code = getattr(inspect.unwrap(value) if inspect.isfunction(value) else value, "__code__", None)
        named = code and code.co_name == name
        fits = [one for one in found if not (named and isinstance(one.node, ast.FunctionDef)) or one.made(code)]
        return next(iter(fits or found), None)

    def stars(self) -> list[str]:
        """Modules of `from module import *`, the latest first."""
        nodes = [one.node for one in self.statements if isinstance(one.node, ast.ImportFrom)]
        return [node.module for node in nodes[::-1] if node.names[0].name == "*" and not node.level]


def _cells(history: list[str]) -> list[Source]:
    """Those that ran; where the front end stores no history, as nbval does not, those that IPython compiled."""
    if any(history):
        return [Source(f"Cell In[{i}]", text) for i, text in enumerate(history) if text]
    named = {file: cell_name(file) for file in list(linecache.cache)}
    return [Source(name, "".join(linecache.getlines(file))) for file, name in named.items() if name]
