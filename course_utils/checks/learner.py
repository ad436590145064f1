"""What can be read off a learner's function: is it still the notebook's stub, or only half written?"""

import ast
import inspect
import textwrap
from collections.abc import Callable


def is_stub(answer: Callable) -> bool:
    """Nothing but a docstring, `...`, `pass` and constants that are returned."""
    body = getattr(next(iter(_tree(answer).body), None), "body", None)
    return isinstance(body, list) and all(
        isinstance(line, ast.Pass) or _is_constant(line) for line in body
    )


def unfinished(answer: Callable) -> bool:
    """A `...` in it stands for code to be written; one that indexes a tensor does not."""
    tree = _tree(answer)
    indexing = {
        id(n) for s in ast.walk(tree) if isinstance(s, ast.Subscript) for n in ast.walk(s.slice)
    }
    return any(
        isinstance(n, ast.Constant) and n.value is ... and id(n) not in indexing
        for n in ast.walk(tree)
    )


def called_otherwise(published: Callable, answer: Callable) -> str:
    """In words, that `answer` cannot be called as `published` is; "" where it can."""
    try:
        wanted, theirs = inspect.signature(published), inspect.signature(answer)
    except (TypeError, ValueError):
        return ""
    needed = [p for p in wanted.parameters.values() if p.default is p.empty]
    try:
        theirs.bind(
            *(p for p in needed if p.kind is not p.KEYWORD_ONLY),
            **{p.name: p for p in needed if p.kind is p.KEYWORD_ONLY},
        )
    except TypeError as error:
        return f"It is called as `{published.__name__}({', '.join(wanted.parameters)})`, and yours cannot be: {error}."
    return ""


def _is_constant(line: ast.stmt) -> bool:
    value = getattr(line, "value", None)
    empty = value is None or (isinstance(value, ast.Constant) and value.value in (None, ...))
    return (
        isinstance(line, ast.Return) and empty
        if not isinstance(line, ast.Expr)
        else isinstance(value, ast.Constant)
    )


def _tree(answer: Callable) -> ast.Module:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(answer)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])
