"""Say in words how two values differ: numbers, text, tensors, arrays, and lists and dicts of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any


def is_tensor(value: Any) -> bool:
    """Is it a torch tensor? Does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def kind(value: Any) -> str:
    """What a value is, in a learner's words: "a list", "an int", "None"."""
    if value is None or value is ...:
        return "None" if value is None else "..."
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    name = "tensor" if is_tensor(value) else type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def show(value: Any, *, plain: bool = False, limit: int = 240) -> str:
    """A value in one or a few short lines; `plain` leaves text without quotes."""
    if plain and isinstance(value, str):
        return value
    if is_tensor(value):
        value = value.detach()
        head = f"tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}, on {value.device}"
        return f"{head}: {value.tolist()}" if value.numel() <= 12 and value.device.type != "meta" else head
    if type(value) in (list, tuple) and any(is_tensor(v) or _is_array(v) for v in value):
        inside = [show(v, limit=limit) for v in value[:4]] + (["…"] if len(value) > 4 else [])
        return f"{kind(value)} of {len(value)}: " + "; ".join(inside)
    text = f"{value:.6g}" if isinstance(value, float) else kind(value) if callable(value) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def difference(expected: Any, got: Any, tol: float = 0.0) -> str:
    """How `got` differs from `expected`, or "" when it does not.

    The same to it are lists, tuples, ranges and one-dimensional arrays of the same values, and numbers of any type,
    NumPy's and 0-d tensors included.
    """
    if _is_whole(expected):
        return _array_difference(expected, got, tol)
    given, expected, got = got, _as_python(expected), _as_python(got)
    if isinstance(expected, Mapping):
        return _mapping_difference(expected, got, tol)
    if isinstance(expected, (list, tuple)):
        return _list_difference(expected, got, tol)
    if isinstance(expected, bool) or not isinstance(expected, Real):
        if type(expected) is not type(got) and not isinstance(got, type(expected)):
            return f"{kind(expected)} was expected, this is {kind(got)}"
        return "" if expected == got else "not the same"
    if isinstance(got, bool) or not isinstance(got, Real):
        return f"a number was expected, this is {kind(given)}"
    if math.isclose(expected, got, rel_tol=0.0, abs_tol=tol) or expected == got:
        return ""
    return "it is not a number (nan)" if math.isnan(got) else f"off by {abs(expected - got):.3g}"


def _is_whole(value: Any) -> bool:
    """A tensor or array whose shape counts: one with a dimension at least."""
    return (is_tensor(value) or _is_array(value)) and value.ndim > 0


def _as_python(value: Any) -> Any:
    """NumPy's numbers and 0-d tensors as Python's, ranges, arrays and tensors as lists."""
    if isinstance(value, range):
        return list(value)
    if is_tensor(value) and value.device.type == "meta":
        return value
    if is_tensor(value) or _is_array(value):
        return value.tolist()  # of a 0-d one its number
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _list_difference(expected: Any, got: Any, tol: float) -> str:
    if isinstance(got, Iterator):
        return f"a list was expected, this is {kind(got)}, which can be read once only: wrap it in list(…)"
    if not isinstance(got, (list, tuple)):
        return f"{kind(expected)} was expected, this is {kind(got)}"
    if len(expected) != len(got):
        return f"{len(expected)} of them were expected, these are {len(got)}"
    return _first((f"number {i}" for i in range(len(expected))), expected, got, tol)


def _first(names: Any, expected: Any, got: Any, tol: float) -> str:
    """The first pair that differs, with its name; "" when none does."""
    for name, a, b in zip(names, expected, got, strict=False):
        if found := difference(a, b, tol):
            return "not the same" if found == "not the same" or found.startswith("off by") else f"{name}: {found}"
    return ""


def _mapping_difference(expected: Mapping, got: Any, tol: float) -> str:
    if not isinstance(got, Mapping):
        return f"{kind(expected)} was expected, this is {kind(got)}"
    if missing := [k for k in expected if k not in got]:
        return f"{', '.join(map(repr, missing[:4]))} missing"
    if extra := [k for k in got if k not in expected]:
        return f"{', '.join(map(repr, extra[:4]))} not expected"
    return _first((repr(k) for k in expected), expected.values(), (got[k] for k in expected), tol)


def _array_difference(expected: Any, got: Any, tol: float) -> str:
    if not (is_tensor(got) or _is_array(got)):
        return f"{kind(expected)} was expected, this is {kind(got)}"
    if tuple(expected.shape) != tuple(got.shape):
        return f"shape {tuple(expected.shape)} was expected, this is {tuple(got.shape)}"
    if is_tensor(expected) and is_tensor(got):
        if expected.device != got.device:
            return f"a tensor on {expected.device} was expected, this one is on {got.device}"
        if expected.is_floating_point() != got.is_floating_point():
            return f"{expected.dtype} was expected, this is {got.dtype}"
    expected, got = (value.detach().cpu().double().numpy() if is_tensor(value) else value for value in (expected, got))
    worst = float(abs(expected - got).max(initial=0.0))
    if math.isnan(worst):
        return "it holds nan"
    return "" if worst <= tol else f"off by {worst:.3g} at most" + (f", {tol:g} is allowed" if tol else "")
