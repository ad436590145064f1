"""What travels as a reference, because ranks have it, too: modules with what they define, and
arrays that are files.
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from cloudpickle.cloudpickle import _find_imported_submodules, _lookup_module_and_qualname

from ..errors import is_own_file
from .unpicklable import names_in

if TYPE_CHECKING:
    import numpy as np

Reduced = tuple[Callable, tuple]


def of_module(value: Any) -> Reduced | None:
    """How to send a module of one's own, or what it defines, if its name does not find its file.

    Raises:
        TypeError: no file has it.
    """
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return None
    root = sys.modules.get(name.partition(".")[0], module)
    file = getattr(root, "__file__", None)
    if file is None and getattr(root, "__spec__", None) is None:
        raise TypeError(f"{root.__name__} was made here, and no file has it")
    if file is None or not is_own_file(file) or _is_found(root.__name__, file):
        return None
    if not os.path.isfile(file):
        raise TypeError(f"sys.path does not lead to {file} any more")
    if isinstance(value, ModuleType):
        return _imported, (name, root.__name__, file, getattr(root, "__path__", None))
    found = _lookup_module_and_qualname(value)  # None: it has the name no more, or never had one
    return (_attribute, found) if found else None


def _is_found(name: str, file: str) -> bool:
    """Whether ranks, which have this process's `sys.path`, find this file by this name."""
    specs = (finder.find_spec(name, None) for finder in sys.meta_path)
    origin = next((spec.origin for spec in specs if spec), None)
    return origin is not None and os.path.realpath(origin) == os.path.realpath(file)


def _imported(name: str, root: str, file: str, path: list[str] | None) -> ModuleType:
    """A module of the package, or the module, `root` that is in `file`."""
    if getattr(sys.modules.get(root), "__file__", None) != file:
        spec = importlib.util.spec_from_file_location(root, file, submodule_search_locations=path)
        assert spec is not None, "the notebook has loaded it"
        sys.modules[root] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[root])  # ty: ignore[missing-union-attribute]
    return importlib.import_module(name)


def _attribute(module: ModuleType, name: str) -> Any:
    return operator.attrgetter(name)(module)


def submodules(function: FunctionType) -> list[ModuleType]:
    """Of `package.module`, which a function names, those that cloudpickle does not see: it does not
    look into functions that this one defines.
    """
    code = function.__code__
    names = names_in(code)
    if names == {*code.co_names}:
        return []
    used = [function.__globals__.get(name) for name in names]
    return _find_imported_submodules(code.replace(co_names=(*names,)), used)


def of_mapped_file(array: np.memmap) -> Reduced | None:
    """How to send an array that is a part of a file; None where it is one in this process only."""
    import numpy as np

    whole: Any = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    path = getattr(whole, "filename", None)
    if path is None or whole.mode == "c" or not array.size or _is_gone(path, whole):
        return None
    begin = whole.offset + array.ctypes.data - whole.ctypes.data
    mode = "r" if whole.mode == "r" else "r+"
    layout = array.dtype, array.shape, array.strides
    return _mapped_file, (os.path.abspath(path), mode, begin, *layout)


def _is_gone(path: str, array: np.memmap) -> bool:
    """Whether the file that it maps is deleted, also if there is another of its name, or cut."""
    if not os.path.exists(path) or os.path.getsize(path) < array.offset + array.nbytes:
        return True
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        addresses, *_, name = line.split(maxsplit=5)
        begin, end = (int(address, 16) for address in addresses.split("-"))
        if begin <= array.ctypes.data < end:
            return name.endswith("(deleted)")
    return False


def _mapped_file(
    path: str, mode: Any, begin: int, dtype: np.dtype, shape: tuple, strides: tuple
) -> np.ndarray:
    import numpy as np

    first = np.memmap(path, np.uint8, mode)[begin : begin + dtype.itemsize].view(dtype)
    return np.lib.stride_tricks.as_strided(first, shape, strides, subok=True)
