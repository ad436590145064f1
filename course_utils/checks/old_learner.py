"""What can be read off a learner's function: is it still the stub, does it fit the call, which line raised."""

from __future__ import annotations

import ast
import dis
import inspect
import sysconfig
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import place

_PATHS = sysconfig.get_paths()
_CHECKS, _PACKAGE = str(Path(__file__).parent), str(Path(__file__).parent.parent)
_NOT_THEIRS = (_PACKAGE, _PATHS["stdlib"], _PATHS["purelib"], _PATHS["platlib"], "<frozen")
_EMPTY_OPS = {"RESUME", "NOP", "LOAD_CONST", "POP_TOP", "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS", "MAKE_CELL"}
_RAISE_OPS = _EMPTY_OPS | {"LOAD_GLOBAL", "PUSH_NULL", "PRECALL", "CALL", "RAISE_VARARGS"}


def untouched(answer: Any) -> bool:
    """Is the body nothing but a docstring, `...`, `pass`, `return None`, `return ...`, `raise NotImplementedError`?"""
    code = getattr(answer, "__code__", None)
    if code is None:
        return False
    body = list(dis.get_instructions(code))
    if {i.argval for i in body if i.opname == "LOAD_GLOBAL"} == {"NotImplementedError"}:
        return all(i.opname in _RAISE_OPS for i in body)
    constants = [i.argval for i in body if i.opname in ("LOAD_CONST", "RETURN_CONST")]
    return all(i.opname in _EMPTY_OPS for i in body) and all(c is None or c is ... for c in constants)


def unfinished(answer: Any, *, empty: bool = False) -> bool:
    """After a failure: did it return None or `...` (`empty`), or does a `...` in it stand for code to be written?"""
    if empty:
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(answer)))
    except (OSError, TypeError, SyntaxError):
        return False
    inside_brackets = {id(n) for s in ast.walk(tree) if isinstance(s, ast.Subscript) for n in ast.walk(s.slice)}
    return any(isinstance(n, ast.Constant) and n.value is ... and id(n) not in inside_brackets for n in ast.walk(tree))


def parameters_differ(published: Callable[..., Any], answer: Any) -> tuple[str, str] | None:
    """(expected, got) as text when `answer` cannot be called as `published` is."""
    try:
        wanted, theirs = inspect.signature(published), inspect.signature(answer)
    except (TypeError, ValueError):
        return None
    positional = [p for p in wanted.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    named = {p.name: None for p in wanted.parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    try:
        theirs.bind(*positional, **named)
    except TypeError:
        return f"{published.__name__}{_bare(wanted)}", f"{getattr(answer, '__name__', 'yours')}{_bare(theirs)}"
    return None


def _bare(signature: inspect.Signature) -> str:
    """A signature without annotations: "(batch, devices)"."""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def where(error: BaseException, check: Callable[..., Any]) -> str | None:
    """The learner's deepest line, as a launch shows it; None when only lines of `check` were reached."""
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        if code is not check.__code__ and not code.co_filename.startswith(_NOT_THEIRS):
            return textwrap.dedent(place((code.co_filename, number, code.co_name)))
    return None


def is_ours(error: BaseException) -> bool:
    """Did the package fail outside the checks? Then it is a fault of ours, and must not read as the learner's."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(file.startswith(_PACKAGE) and not file.startswith(_CHECKS) for file in files)
