"""What `report()` takes: a step, and numbers by name. In words, what is none."""

import math
import operator
import reprlib
from collections.abc import Mapping
from typing import Any

WRITE = (
    "A step is one whole number, and a value has a name: report(loss=0.5), report(10, loss=0.5), "
    "of a dict report(**values)."
)


def checked(
    step: int | None, values: Mapping[str, Any], error: type[Exception]
) -> tuple[int | None, dict[str, float]]:
    """The step and the values as Python's own numbers; raises the error where they are none."""
    if step is not None:
        if not values:
            raise error(f"report got {reprlib.repr(step)} without a name. {WRITE}")
        try:
            step = operator.index(step)
        except TypeError:
            raise error(f"report got {reprlib.repr(step)} as a step. {WRITE}") from None
    for name in ("rank", "time"):
        if name in values:
            raise error(f"report got {name}=, which each record has by itself. {WRITE}")
    return step, {name: as_float(value, name, error) for name, value in values.items()}


def as_float(value: Any, name: str, error: type[Exception]) -> float:
    """A number of Python, NumPy or torch as a float, beyond the range of floats as inf or -inf.

    Raises the error, with this name, where it is no number.
    """
    if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1:
        value = value.item()  # float(tensor) would warn of its gradient
    try:
        if isinstance(value, str | bytes):  # in which Python's float reads a number
            raise TypeError
        return float(value)
    except OverflowError:  # an int of Python
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        raise error(
            f"{name}={reprlib.repr(value)} is no number: give one, as in {name}=0.5, or a tensor "
            "of one element."
        ) from None
