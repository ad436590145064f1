"""Which modules are copied into the script, and which values no statement can make again."""

from __future__ import annotations

import io
import sys
import sysconfig
import types
from importlib.util import find_spec
from typing import Any

from ..ground.errors import LaunchError
from ..ranks.payload import packed

COPIED = ("course_utils.lessons.", "course_utils.theory.")
INSTALLED = tuple({path for key, path in sysconfig.get_paths().items() if key in ("stdlib", "platstdlib")})


def inlined(module: str) -> bool:
    """Is its source copied? That of the lessons is, and that of modules that are files beside the notebook."""
    top = module.partition(".")[0]
    if top == "course_utils" or top == "__main__" or top in sys.stdlib_module_names:
        return module.startswith(COPIED)
    try:
        file = getattr(sys.modules.get(top), "__file__", None) or getattr(find_spec(top), "origin", None)
    except (ImportError, ValueError):
        return False
    return bool(file) and file.endswith(".py") and "-packages" not in file and not file.startswith(INSTALLED)


def ours(value: Any) -> bool:
    """Is it a module, class, function or object of the course?"""
    if isinstance(value, types.ModuleType):
        module = value.__name__
    else:
        module = getattr(value, "__module__", None) or type(value).__module__
    return isinstance(module, str) and module.partition(".")[0] == "course_utils"


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
    except LaunchError:
        return f"a {type(value).__name__}, which cannot leave this process"
    return None


def public_name(value: Any) -> tuple[str, str] | None:
    """(module, name) that an installed class or function is imported by: the shortest module that has it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if (
        not isinstance(module, str)
        or not isinstance(name, str)
        or module == "__main__"
        or ours(value)
        or inlined(module)
    ):
        return None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        shorter = ".".join(parts[:end])
        if getattr(sys.modules.get(shorter), name, None) is value:
            return shorter, name
    return None
