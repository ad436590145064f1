"""Say in words how two values differ: numbers, texts, tensors, arrays, and containers of them."""

import math
from array import array
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_map


class AtMost(NamedTuple):
    """A cost: right while it is no larger than `most`."""

    value: float
    most: float


class Difference(NamedTuple):
    """How a value differs from the one expected, and both where they do."""

    words: str
    expected: str = ""
    got: str = ""


def difference(expected: Any, got: Any, tol: float) -> Difference | None:
    """How `got` differs from `expected`; None where it does not.

    The same are lists, tuples, ranges and arrays of the same values, dicts of any type, and numbers
    of any type, 0-d tensors included. A tensor's shape, type, device and `requires_grad` count; its
    values, and numbers, to within `tol`.
    """
    if isinstance(expected, AtMost):
        # `expected` is the solution's cost, or a mistake's that is too high; only the same mistake
        # costs as much.
        both_right = got.value <= got.most and expected.value <= expected.most
        if got.value == expected.value or both_right:
            return None
        return Difference("more than is allowed", f"at most {expected.most:,}", f"{got.value:,}")
    if isinstance(expected, torch.Tensor) and (expected.dim() or expected.is_meta):
        return _of_tensors(expected, got, tol)

    given = got
    wanted = kind(expected)
    expected = _plain(expected)
    got = _plain(got)
    for container in (Mapping, list):
        if isinstance(expected, container) and not isinstance(got, container):
            return _of_kinds(wanted, expected, given)
    if isinstance(expected, Mapping):
        return _of_mappings(expected, got, tol)
    if isinstance(expected, list):
        return _of_lists(expected, got, show(given), tol)
    if _is_number(expected):
        if not _is_number(got):
            return _of_kinds("a number", expected, given)
        both_nan = math.isnan(expected) and math.isnan(got)
        if both_nan or math.isclose(expected, got, rel_tol=tol, abs_tol=tol):
            return None
        return Difference(_off(expected, got), *_apart(expected, got))
    if type(expected) is type(got) and expected == got:
        return None
    if kind(expected) != kind(given):
        return _of_kinds(kind(expected), expected, given)
    both = show(expected), show(given)
    if isinstance(expected, str):
        both = _parting(expected, got)
    return Difference("not what was expected", *both)


def show(value: Any) -> str:
    """A value in one short line."""
    if isinstance(value, torch.Tensor) and (value.is_meta or value.numel() > 12):
        return f"tensor of shape {tuple(value.shape)}, {value.dtype}, on {value.device}"
    value = _plain(value)
    if isinstance(value, list):
        text = f"[{', '.join(show(one) for one in value[:100])}]"
    elif isinstance(value, Mapping):
        text = f"{{{', '.join(f'{key!r}: {show(one)}' for key, one in value.items())}}}"
    elif isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, str):
        text = value
    else:
        text = repr(value)
    return text if len(text) <= 200 else text[:199] + "…"


def kind(value: Any) -> str:
    """What a value is, in a learner's words: "a list", "an int", "nothing"."""
    if value is None:
        return "nothing (None)"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, str):
        return "a text"
    name = type(value).__name__
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    return f"{article} {name}"


def kinds(value: Any) -> str:
    """A nested value with the kind of each part in its place: `[('a tensor', 'an int')]`."""
    return repr(tree_map(kind, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _of_mappings(expected: Mapping, got: Mapping, tol: float) -> Difference | None:
    if expected.keys() != got.keys():
        names = _parting(repr([*expected]), repr([*got]))
        return Difference("other names than expected", *names)
    for key, value in expected.items():
        if found := difference(value, got[key], tol):
            return found._replace(words=f"{key!r}: {found.words}")
    return None


def _of_lists(expected: list, got: list, given: str, tol: float) -> Difference | None:
    whole = show(expected)
    if len(expected) != len(got):
        count = f"{len(expected)} of them" if expected else "none"
        return Difference(f"{count} expected, these are {len(got)}", whole, given)
    for i, (value, its) in enumerate(zip(expected, got, strict=True)):
        if found := difference(value, its, tol):
            found = found._replace(words=f"number {i}: {found.words}")
            short = len(whole) <= 80 and whole != given
            return found._replace(expected=whole, got=given) if short else found
    return None


def _of_kinds(wanted: str, expected: Any, got: Any) -> Difference:
    both = show(expected), show(got)
    if both[0] == both[1]:  # the number 7 and the text "7"
        both = repr(expected), repr(got)
    words = f"this is {kind(got)}"
    if got is not None:  # where a text may stand for what was expected
        words = f"{wanted} was expected, {words}"
    return Difference(words, *both)


def _parting(expected: str, got: str) -> tuple[str, str]:
    """Two texts from shortly before they differ, since `show` cuts what is long."""
    places = enumerate(zip(expected, got, strict=False))
    parting = next((i for i, (a, b) in places if a != b), min(len(expected), len(got)))
    start = max(0, parting - 60)
    cut = "…" if start else ""
    return show(cut + expected[start:]), show(cut + got[start:])


def _off(expected: float, got: float, most: str = "") -> str:
    off = abs(expected - got)
    if math.isfinite(off):
        return f"off by {off:.3g}{most}"
    return f"{got:g} where {expected:g} was expected"


def _apart(expected: float, got: float) -> tuple[str, str]:
    """Two numbers with as many digits as show that they differ."""
    usual = ",.0f" if abs(expected) >= 1e6 else ".6g"
    for digits in (usual, ".9g", ".17g"):
        both = format(expected, digits), format(got, digits)
        if both[0] != both[1]:
            break
    return both


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, torch.Tensor) and not value.is_meta:
        return value.tolist()
    if isinstance(value, Decimal):
        return float(value)
    return list(value) if isinstance(value, (range, tuple, array)) else value


def _of_tensors(expected: torch.Tensor, got: Any, tol: float) -> Difference | None:
    if isinstance(got, np.ndarray):
        got = torch.as_tensor(got)
    if not isinstance(got, torch.Tensor):
        words = f"a tensor was expected, this is {kind(got)}"
        return Difference(words, f"tensor({show(expected)})", show(got))
    for name in ("shape", "device", "dtype", "requires_grad"):
        wanted, its = getattr(expected, name), getattr(got, name)
        if wanted != its:
            if name == "shape":
                wanted, its = tuple(wanted), tuple(its)
            return Difference(f"another {name}", f"{name} {wanted}", f"{name} {its}")
    if expected.is_meta:
        return None

    a, b = (tensor.detach().cpu().double() for tensor in (expected, got))
    close = torch.isclose(a, b, rtol=tol, atol=tol, equal_nan=True)
    off = torch.where(close, 0.0, (a - b).abs().nan_to_num(torch.inf, torch.inf))
    if not off.any():
        return None

    at = torch.unravel_index(off.argmax(), off.shape)
    worst = a[at].item(), b[at].item()
    words = _off(*worst, " at most")
    if expected.numel() <= 12 and show(expected) != show(got):
        return Difference(words, show(expected), show(got))
    where = f" at [{', '.join(str(int(i)) for i in at)}]"
    both = _apart(*worst)
    return Difference(words, both[0] + where, both[1] + where)
