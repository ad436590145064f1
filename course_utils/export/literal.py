"""A value as the expression that makes it again, where it has a short one."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from typing import Any

WIDTH = 120


class NoLiteral(Exception):
    """The value has no expression of its own; `args[0]` is the part that has none."""


def literal(value: Any) -> str:
    """Plain values and containers of them, torch's dtypes and devices; long ones over several lines."""
    text = _on_one_line(value)
    if len(text) <= WIDTH - 40 or not isinstance(value, (list, tuple, dict, set)):
        return text
    rows = map(literal, value)
    if isinstance(value, dict):
        rows = (f"{_on_one_line(key)}: {literal(one)}" for key, one in value.items())
    return text[0] + "\n" + textwrap.indent("".join(f"{row},\n" for row in rows), "    ") + text[-1]


def _on_one_line(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return repr(value) if '"' in value and "'" not in value else json.dumps(value, ensure_ascii=False)
    if kind is float and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or value is ... or kind in (bool, int, float, complex, bytes):
        return "..." if value is ... else repr(value)
    if kind is dict:
        return "{" + ", ".join(f"{_on_one_line(k)}: {_on_one_line(v)}" for k, v in value.items()) + "}"
    if kind in (list, tuple, set) and (value or kind is not set):
        inside = ", ".join(map(_on_one_line, value))
        return {list: "[{}]", tuple: "({},)" if len(value) == 1 else "({})", set: "{{{}}}"}[kind].format(inside)
    if kind in (set, frozenset):
        return f"{kind.__name__}({_on_one_line([*value]) if value else ''})"
    if kind in (range, slice):
        return f"{kind.__name__}({', '.join(map(_on_one_line, (value.start, value.stop, value.step)))})"
    torch = sys.modules.get("torch")
    if torch and kind is torch.dtype:
        return str(value)
    if torch and kind is torch.device:
        return f'torch.device("{value}")'
    raise NoLiteral(value)
