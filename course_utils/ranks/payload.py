"""A function with its arguments, and its result, as bytes, by value: what is defined in cells travels with it."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import CourseError

if TYPE_CHECKING:
    from torch import Tensor


def packed(function: Callable, args: tuple, kwargs: dict[str, Any]) -> bytes:
    """`(function, args, kwargs)` as bytes, by value; a `CourseError` that names the part that cannot travel."""
    try:
        return dumps((function, args, kwargs))
    except Exception as error:
        parts = [(f"argument {i + 1}", value) for i, value in enumerate(args)]
        parts += [(f"argument {name}", value) for name, value in kwargs.items()]
        parts += [(f"{name}, which the function uses,", value) for name, value in _used(function)]
        culprit = next((f"{name} ({type(value).__name__})" for name, value in parts if not _travels(value)), "it")
        raise CourseError(
            f"the function cannot be sent to the ranks: {culprit} cannot be pickled ({error}). "
            "Create it inside the function, or pass what it is made from."
        ) from None


def dumps(value: object) -> bytes:
    """As cloudpickle, but tensors on an XLA device arrive on the CPU: there, that device is another one, or taken."""
    import io

    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):
        def reducer_override(self, value: object) -> Any:
            if (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor) and value.device.type == "xla":
                return _on_the_cpu(value).__reduce_ex__(4)
            # cloudpickle knows modules by their exact type, and torch.backends.cudnn is one of a type of its own.
            odd = isinstance(value, types.ModuleType) and type(value) is not types.ModuleType
            if odd and sys.modules.get(value.__name__) is value:
                return importlib.import_module, (value.__name__,)
            return super().reducer_override(value)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _on_the_cpu(value: Tensor) -> Tensor:
    import torch

    copy = value.detach().cpu()
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(copy, requires_grad=value.requires_grad)
    return copy.requires_grad_(value.requires_grad)


def _travels(value: object) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


def _used(function: Callable) -> list[tuple[str, object]]:
    """Globals and closure variables that a function refers to, by name."""
    try:
        variables = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return []
    return [*variables.nonlocals.items(), *variables.globals.items()]
