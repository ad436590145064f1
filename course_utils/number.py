"""What counts as one number: shared by `report`, in the ranks, and by the live plots."""

from __future__ import annotations

from .errors import MetricError


def number(name: str, value: object) -> float:
    """The metric `value` as a float: a Python or NumPy number, or a tensor with no dimension.

    NaN and infinities pass: they are news. A tensor is read at once, which waits for its device.

    Raises:
        MetricError: anything else, said by name, type and shape.
    """
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            raise MetricError(f"{name} is an integer too large to draw, {len(str(value))} digits long.") from None
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        if getattr(value, "is_meta", False):
            raise MetricError(f"{name} is a tensor on the meta device: it has a shape but no value.")
        try:
            return float(value.item())
        except (TypeError, ValueError):
            pass
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        what = f"a {type(value).__name__} of shape {tuple(shape)} and type {value.dtype}"
        todo = f"reduce it first, for example {name}.mean().item()"
    else:
        text = repr(value)
        what = f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
        todo = "pass a number or a tensor with no dimension, for example loss.item()"
    raise MetricError(f"{name} is {what}; a metric is one number: {todo}.")
