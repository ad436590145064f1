"""Say in words how two values differ: numbers, texts, tensors, arrays, and containers of them."""

import math
from collections.abc import Mapping
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

    The same are lists, tuples, ranges and arrays of the same values, dicts of any type, and numbers of any type, 0-d
    tensors included.
    A tensor's shape, type, device and `requires_grad` count; its values, and numbers, to within `tol`.
    """
    if isinstance(expected, AtMost):
        # `expected` is the solution's cost, or a mistake's that is too high; only the same mistake costs as much.
        if got.value == expected.value or (
            got.value <= got.most and expected.value <= expected.most
        ):
            return None
        return Difference("more than is allowed", f"at most {expected.most:,}", f"{got.value:,}")
    if isinstance(expected, torch.Tensor) and (expected.dim() or expected.is_meta):
        return _of_tensors(expected, got, tol)
    given, expected, got = got, _plain(expected), _plain(got)
    if any(
        isinstance(expected, container) > isinstance(got, container)
        for container in (Mapping, list)
    ):
        return _of_kinds(kind(expected), expected, given)
    if isinstance(expected, Mapping):
        if expected.keys() != got.keys():
            return Difference(
                "other names than expected", show(repr([*expected])), show(repr([*got]))
            )
        return _first(((f"{key!r}: ", expected[key], got[key]) for key in expected), tol)
    if isinstance(expected, list):
        both = show(expected), show(given)
        if len(expected) != len(got):
            return Difference(
                f"{len(expected) or 'none'} of them expected, these are {len(got)}", *both
            )
        found = _first(
            ((f"number {i}: ", *pair) for i, pair in enumerate(zip(expected, got, strict=True))),
            tol,
        )
        return (
            Difference(found.words, *both)
            if found and len(both[0]) <= 80 and both[0] != both[1]
            else found
        )
    if isinstance(expected, Real) and not isinstance(expected, bool):
        if isinstance(got, bool) or not isinstance(got, Real):
            return _of_kinds("a number", expected, given)
        if math.isclose(expected, got, rel_tol=tol, abs_tol=tol) or (
            expected != expected and got != got
        ):
            return None
        return Difference(f"off by {abs(expected - got):.3g}", *_apart(expected, got))
    if type(expected) is type(got) and expected == got:
        return None
    if kind(expected) != kind(given):
        return _of_kinds(kind(expected), expected, given)
    return Difference("not what was expected", show(expected), show(given))


def show(value: Any, limit: int = 200) -> str:
    """A value in one short line."""
    if isinstance(value, torch.Tensor) and (value.is_meta or value.numel() > 12):
        return f"tensor of shape {tuple(value.shape)}, {value.dtype}, on {value.device}"
    value = _plain(value)
    if isinstance(value, list):
        text = f"[{', '.join(show(one) for one in value[:100])}]"
    elif isinstance(value, Mapping):
        text = f"{{{', '.join(f'{key!r}: {show(one)}' for key, one in value.items())}}}"
    else:
        text = (
            f"{value:.6g}"
            if isinstance(value, float)
            else value
            if isinstance(value, str)
            else repr(value)
        )
    return text if len(text) <= limit else text[: limit - 1] + "…"


def kind(value: Any) -> str:
    """What a value is, in a learner's words: "a list", "an int", "nothing"."""
    if value is None:
        return "nothing (None)"
    name = (
        "tensor"
        if isinstance(value, torch.Tensor)
        else "text"
        if isinstance(value, str)
        else type(value).__name__
    )
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def kinds(value: Any) -> str:
    """A nested value with the kind of each part in its place: `[('a tensor', 'an int')]`, where a tuple is no list."""
    return repr(tree_map(kind, value))


def _first(pairs: Any, tol: float) -> Difference | None:
    for name, expected, got in pairs:
        if found := difference(expected, got, tol):
            return found._replace(words=name + found.words)
    return None


def _of_kinds(wanted: str, expected: Any, got: Any) -> Difference:
    both = show(expected), show(got)
    both = (
        both if both[0] != both[1] else (repr(expected), repr(got))
    )  # the number 7 and the text "7"
    return Difference(f"{wanted} was expected, this is {kind(got)}", *both)


def _apart(expected: float, got: float) -> tuple[str, str]:
    """Two numbers with as many digits as show that they differ."""
    formats = (",.0f" if abs(expected) >= 1e6 else ".6g", ".9g", ".17g")
    pairs = ((format(expected, one), format(got, one)) for one in formats)
    return next((pair for pair in pairs if pair[0] != pair[1]), (repr(expected), repr(got)))


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)) or (
        isinstance(value, torch.Tensor) and not value.is_meta
    ):
        return value.tolist()
    return list(value) if isinstance(value, (range, tuple)) else value


def _of_tensors(expected: torch.Tensor, got: Any, tol: float) -> Difference | None:
    if isinstance(got, np.ndarray):
        got = torch.as_tensor(got)
    if not isinstance(got, torch.Tensor):
        return Difference(
            f"a tensor was expected, this is {kind(got)}", f"tensor({show(expected)})", show(got)
        )
    for name in ("shape", "device", "dtype", "requires_grad"):
        wanted, its = getattr(expected, name), getattr(got, name)
        if wanted != its:
            wanted, its = (tuple(wanted), tuple(its)) if name == "shape" else (wanted, its)
            return Difference(f"another {name}", f"{name} {wanted}", f"{name} {its}")
    if expected.is_meta:
        return None
    a, b = (tensor.detach().cpu().double() for tensor in (expected, got))
    off = torch.where(
        torch.isclose(a, b, rtol=tol, atol=tol, equal_nan=True),
        0.0,
        (a - b).abs().nan_to_num(torch.inf),
    )
    if not off.any():
        return None
    if expected.numel() <= 12 and show(expected) != show(got):
        return Difference(f"off by {off.max():.3g} at most", show(expected), show(got))
    at = torch.unravel_index(off.argmax(), off.shape)
    where = f" at [{', '.join(str(int(i)) for i in at)}]"
    return Difference(
        f"off by {off.max():.3g} at most",
        *(text + where for text in _apart(a[at].item(), b[at].item())),
    )
