"""Text of the script: plain values as the expressions that make them, and its imports."""

import ast
import json
from collections import defaultdict
from contextlib import suppress
from typing import Any

SCALARS = (type(None), bool, int, float, str, bytes)
CONTAINERS = (tuple, list, dict, set)


def literal(value: Any) -> str | None:
    """The expression of a plain value, or of a container of plain values; None for any other."""
    if type(value) is str:
        return json.dumps(value, ensure_ascii=False)
    if type(value) is float and repr(value) in ("inf", "-inf", "nan"):
        return f'float("{value}")'
    if not _is_plain(value, set()):
        return None
    with suppress(ValueError, SyntaxError):
        if ast.literal_eval(repr(value)) == value:
            return repr(value)
    return None


def _is_plain(value: Any, seen: set[int]) -> bool:
    """Whether it is made of plain values alone, and no list, dict or set is in it twice."""
    if type(value) in SCALARS:
        return True
    if type(value) not in CONTAINERS or id(value) in seen:
        return False
    if not isinstance(value, tuple):
        seen.add(id(value))
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(part, seen) for part in parts)


def assigns(node: ast.stmt, constant: str) -> bool:
    """Whether the statement assigns just this literal."""
    wanted = ast.parse(constant, mode="eval").body
    return isinstance(node, ast.Assign) and ast.dump(node.value) == ast.dump(wanted)


def import_lines(imports: dict[str, str], environment: list[str]) -> str:
    """__future__ first, then the environment, which modules may read as they are imported, then
    what replaces torch's functions for all imports after it; modules, and parts of modules, those
    of one together.
    """
    parts = defaultdict(list)
    for line in sorted({*imports.values()}):
        start, _, names = line.partition("import ")
        parts[start].append(names)
    modules = [f"import {name}" for name in parts.pop("", [])]
    others = [f"{start}import {', '.join(names)}" for start, names in parts.items()]
    first = ("from __future__", "from dist_utils")
    lines = sorted(modules + others, key=lambda line: (not line.startswith(first), line[0] == "f"))
    if environment:
        begin = sum(line.startswith("from __future__") for line in lines)
        lines.remove("import os")
        lines[begin:begin] = ["import os", *environment]
    return "\n".join(lines)
