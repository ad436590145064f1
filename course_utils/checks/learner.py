"""What can be read off a function: is it still the stub, or only half written; what it imports."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any


def is_stub(answer: Callable) -> bool:
    """Nothing but a docstring, `...`, `pass` and `return`."""
    first = next(iter(_tree(answer).body), None)
    return isinstance(first, ast.FunctionDef) and all(_is_nothing(line) for line in first.body)


def unfinished(answer: Callable) -> bool:
    """A `...` in it stands for code to be written; one that indexes a tensor does not."""
    nodes = list(ast.walk(_tree(answer)))
    indices = [node.slice for node in nodes if isinstance(node, ast.Subscript)]
    indexing = [part for index in indices for part in ast.walk(index)]
    return any(
        isinstance(node, ast.Constant) and node.value is ... and node not in indexing
        for node in nodes
    )


def called_otherwise(published: FunctionType, answer: Callable) -> str:
    """In words, that `answer` cannot be called as `published` is; "" where it can."""
    try:
        wanted, theirs = inspect.signature(published), inspect.signature(answer)
    except (TypeError, ValueError):
        return ""
    try:
        theirs.bind(*wanted.parameters)
    except TypeError as error:
        call = f"{published.__name__}({', '.join(wanted.parameters)})"
        return f"It is called as `{call}`, and yours cannot be: {error}."
    return ""


def imports(function: FunctionType, there: dict[str, Any]) -> list[str]:
    """The import statements of its module, for those of its names that are not `there` already."""
    module = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    names = {node.id for node in ast.walk(_tree(function)) if isinstance(node, ast.Name)}
    found = []
    for line in module.body:
        if isinstance(line, (ast.Import, ast.ImportFrom)):
            bound = {alias.asname or alias.name.partition(".")[0]: alias for alias in line.names}
            line.names = [bound[name] for name in bound if name in names - there.keys()]
            if isinstance(line, ast.ImportFrom) and line.level:
                package = function.__module__.rsplit(".", line.level)[0]
                line.module, line.level = f"{package}.{line.module or ''}".rstrip("."), 0
            if line.names:
                found.append(ast.unparse(line))
    return found


def _is_nothing(line: ast.stmt) -> bool:
    if isinstance(line, ast.Expr):
        return isinstance(line.value, ast.Constant)
    return ast.unparse(line) in ("pass", "return", "return None", "return ...")


def _tree(answer: Callable) -> ast.Module:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(answer)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])
