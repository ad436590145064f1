"""Where a value is from: copied into the script with its module, imported there, or of this kernel only."""

from __future__ import annotations

import io
import sys
import sysconfig
import types
from importlib.util import find_spec
from typing import Any

from ..errors import CourseError
from ..ranks.payload import packed

COPIED = ("course_utils.lessons.", "course_utils.planner", "course_utils.schedules", "course_utils.export.standins")
INSTALLED = tuple({path for key, path in sysconfig.get_paths().items() if key in ("stdlib", "platstdlib")})


def copied(module: str) -> bool:
    """Is its source copied? That of the lessons is, and that of modules that are files beside the notebook."""
    top = module.partition(".")[0]
    if top in ("course_utils", "__main__") or top in sys.stdlib_module_names:
        return module.startswith(COPIED)
    try:
        file = getattr(sys.modules.get(top), "__file__", None) or getattr(find_spec(top), "origin", None)
    except (ImportError, ValueError):
        return False
    return bool(file) and file.endswith(".py") and "-packages" not in file and not file.startswith(INSTALLED)


def tool(module: str) -> bool:
    """Is it a module of the course that only a notebook has?"""
    return module.partition(".")[0] == "course_utils" and not copied(module)


def home(value: Any) -> str:
    """The module that a value, or the class of it, is from."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else type(value).__module__


def public_name(value: Any) -> tuple[str, str] | None:
    """(module, name) that an installed class or function is imported by: the shortest module that has it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or copied(module) or tool(module):
        return None
    parts = module.split(".")
    for shorter in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
        if shorter != "__main__" and getattr(sys.modules.get(shorter), name, None) is value:
            return shorter, name
    return None


def stateful(value: Any) -> str | None:
    """Why running its statement again would not give this value, in words; None where it would."""
    if isinstance(value, io.IOBase):
        return "an open file"
    if type(value).__module__.partition(".")[0] in ("IPython", "ipykernel", "ipywidgets"):
        return f"a {type(value).__name__}, which only a notebook has"
    if torch := sys.modules.get("torch"):
        kinds = {torch.Tensor: "a tensor", torch.nn.Module: "a model", torch.optim.Optimizer: "an optimizer"}
        for kind, name in kinds.items():
            if isinstance(value, kind):
                return f"{name}, with numbers that only this kernel has"
    try:
        packed(type, (value,), {})
    except CourseError:
        return f"a {type(value).__name__}, which cannot leave this process"
    return None
