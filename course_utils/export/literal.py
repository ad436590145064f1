"""A value as the expression that makes it again, where it has a short one."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

WIDTH = 120


class NoLiteral(Exception):
    """The value has no expression of its own; `args[0]` is the part that has none."""


def literal(value: Any, *, indent: int = 0, room: int = WIDTH) -> str:
    """Plain values and containers of them, torch's dtypes and devices; over several lines where one is too short."""
    text = _on_one_line(value)
    if len(text) <= room or not isinstance(value, (list, tuple, dict, set)) or not value:
        return text
    pad = " " * (indent + 4)
    if isinstance(value, dict):
        rows = [f"{_on_one_line(k)}: {literal(v, indent=indent + 4, room=room - 8)}" for k, v in value.items()]
    else:
        rows = [literal(item, indent=indent + 4, room=room - 5) for item in value]
    return text[0] + "\n" + "".join(f"{pad}{row},\n" for row in rows) + " " * indent + text[-1]


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
