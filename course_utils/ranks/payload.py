"""A function with its arguments, and its result, as bytes, by value: what is defined in cells travels with it."""

import importlib
import io
import sys
import types
from collections.abc import Callable
from typing import Any

import cloudpickle

from ..errors import CourseError


class Pickler(cloudpickle.CloudPickler):
    """As cloudpickle, but tensors on an XLA device arrive on the CPU: there, that device is another one, or taken."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch and isinstance(value, torch.Tensor) and value.device.type == "xla":
            copy = value.detach().cpu().requires_grad_(value.requires_grad)
            if isinstance(value, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, requires_grad=value.requires_grad)
            return copy.__reduce_ex__(4)
        # cloudpickle knows modules by their exact type, and torch.backends.cudnn is one of a type of its own.
        odd = isinstance(value, types.ModuleType) and type(value) is not types.ModuleType
        if odd and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


def dumps(value: object) -> bytes:
    """`value` as bytes that `pickle.loads` reads."""
    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def packed(function: Callable, args: tuple, kwargs: dict[str, Any]) -> bytes:
    """`(function, args, kwargs)` as bytes, by value; a `CourseError` when a part of it cannot travel."""
    try:
        return dumps((function, args, kwargs))
    except Exception as error:
        raise CourseError(
            f"the function, or something that it uses, cannot be sent to the ranks: {error}. "
            "Create such a thing inside the function, or pass what it is made from."
        ) from None
