"""What can be sent to another process, and how: functions and classes of cells by value, modules by
name, tensors as `tensors.py` says.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import importlib
import io
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NewType, ParamSpec

import cloudpickle
from cloudpickle.cloudpickle import _code_reduce, _find_imported_submodules, _function_setstate

from ..errors import is_own_file
from .files import LARGE

if TYPE_CHECKING:
    import numpy as np

MAGIC = {"system", "getoutput", "run_line_magic", "run_cell_magic"}  # IPython's, for ! and %
IPYTHONS_DISPLAY = "IPython.core.display_functions", "display"
OF_EACH = (  # objects of which every process has its own, by module and name
    ("sys", "stdout"),
    ("sys", "stderr"),
    ("sys", "__stdout__"),
    ("sys", "__stderr__"),
    ("os", "environ"),
    ("random", "_inst"),
    ("numpy.random.mtrand", "_rand"),
    ("torch", "default_generator"),
    ("dataclasses", "MISSING"),
)
ADVICE = {  # by what an error says
    "'generator' object": "give list(…) of it",
    "'coroutine' object": "give asyncio.run(…) of it",
    "through inheritance": "give one of multiprocessing.Manager()",  # a Queue, a Lock, a Value
}


class Pickler(cloudpickle.CloudPickler):
    """As cloudpickle's, with large `buffers` beside the pickle, and the `folders` of modules.

    Args:
        call: a function that goes to a rank, where `__main__` is to have what cells define.
    """

    def __init__(self, *, call: bool = False) -> None:
        from .tensors import Tensors  # which imports torch

        self.text = io.BytesIO()
        self.buffers: list[memoryview] = []
        self.folders: dict[str, None] = {}  # in the order in which they were found
        self.main = vars(sys.modules["__main__"]) if call else {}
        self.by_type: dict[type, Callable[[Any], Any]] = {
            **Tensors(call=call).by_type,
            functools._lru_cache_wrapper: _cached_function,
            functools.cached_property: _cached_attribute,
            MethodType: _method,
            Connection: _refuse_connection,
            CellType: _empty_cell,
            CodeType: _code,
            NewType: self._name_of_a_type,
            ParamSpec: self._name_of_a_type,
            **{type(_found(*place)): _of_each for place in OF_EACH},
        }
        if numpy := sys.modules.get("numpy"):
            self.by_type[numpy.memmap] = _mapped_array
        super().__init__(self.text, protocol=5, buffer_callback=self._stays)
        if call:
            self.globals_ref[id(self.main)] = Namespace("__main__")

    def _stays(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether the buffer is to lie in the pickle."""
        data = buffer.raw()
        # Of a tensor's memory, which is copied once where it is opened, all lies beside.
        is_beside = data.nbytes >= LARGE or isinstance(data.obj, ctypes.Array)
        if is_beside:
            self.buffers.append(data)
        return not is_beside

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        reduce = self.by_type.get(kind)
        if reduce is None:
            package = str(kind.__module__).partition(".")[0]
            reduce = BY_NAME.get((package, kind.__name__))
        if reduce is not None:
            return reduce(value)
        if isinstance(value, FunctionType | type | ModuleType):
            return self._definition(value)
        return NotImplemented

    # Functions, classes and modules.

    def _definition(self, value: Any) -> Any:
        self._find_module(value)
        if isinstance(value, ModuleType):
            # cloudpickle knows modules by their type, and torch.backends.cudnn has its own.
            known = sys.modules.get(value.__name__) is value
            return (importlib.import_module, (value.__name__,)) if known else NotImplemented
        if isinstance(value, type):
            return self._class(value)
        return self._function(value)

    def _class(self, kind: type) -> Any:
        is_renamed = kind.__name__ != kind.__qualname__  # SDPBackend, and pickle asks for that
        if is_renamed and is_named(kind):
            return getattr, (sys.modules[kind.__module__], kind.__name__)
        return self._of_main(kind, super().reducer_override(kind))

    def _function(self, function: FunctionType) -> Any:
        if (function.__module__, function.__name__) == IPYTHONS_DISPLAY:
            return getattr, (builtins, "display")
        if function.__code__ is DISPATCHES and not is_named(function):
            registry = dict(function.registry)  # ty: ignore[missing-attribute]
            made = _dispatching, (function.__name__,), registry, None, None, _register
            return self._of_main(function, made)
        if has_magic(function):
            raise TypeError("a line with ! or %, which only the notebook can run")
        module = _module_of(function)
        if module:
            self.globals_ref.setdefault(id(function.__globals__), Namespace(module))
        reduced: Any = super().reducer_override(function)
        if reduced is NotImplemented:
            return reduced
        make, arguments, state, *_ = reduced
        attributes = state[1]
        attributes["_cloudpickle_submodules"] += _submodules(function)
        if module:
            attributes["__globals__"] = {}  # they are there, and may not be sent
        # The cells themselves, which other functions may share, and then what they hold.
        attributes["__closure__"] = None
        arguments = (*arguments[:-1], function.__closure__)
        state = state, _contents(function)
        return self._of_main(function, (make, arguments, state, None, None, _set_function))

    def _name_of_a_type(self, value: Any) -> Any:
        """A NewType or a ParamSpec, which pickle finds by its name in a module."""
        name = value.__name__
        if is_named(value):
            return NotImplemented
        arguments = (name, value.__supertype__) if isinstance(value, NewType) else (name,)
        return self._of_main(value, (type(value), arguments))

    def _of_main(self, value: Any, reduced: Any) -> Any:
        """Let a rank find by its name what a cell defines, as who pickles it there does."""
        if reduced is NotImplemented or self.main.get(value.__name__) is not value:
            return reduced
        make, arguments, *rest = reduced
        return _in_main, (value.__name__, make, arguments), *rest

    def _find_module(self, value: Any) -> None:
        """Have ranks find the file of a module of one's own; `sys.path` may lead to another.

        Raises:
            TypeError: no file has it.
        """
        name = value.__name__ if isinstance(value, ModuleType) else value.__module__
        name = str(name).partition(".")[0]
        module = sys.modules.get(name)
        if module is None or name == "__main__":
            return
        file = getattr(module, "__file__", None)
        if file is None and getattr(module, "__spec__", None):  # Python's own, or of no file
            return
        if file is not None and (not is_own_file(file) or _is_found(name, file)):
            return
        path, end = os.path.splitext(str(file))
        folder, last = os.path.split(path)
        if last == "__init__":
            folder, last = os.path.split(folder)
        if last != name or not os.path.isfile(path + end):
            raise TypeError(f"ranks cannot import the module {name}: it has no file of that name")
        self.folders[folder] = None


# What is in another process in place of a value.


class Namespace(dict):
    """Stands for a module's namespace in a pickle: functions get that of their rank."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __reduce__(self) -> tuple[Callable, tuple]:
        return _namespace, (self.module,)


def _namespace(module: str) -> dict[str, Any]:
    """That of this rank; a virtual core, a thread beside others, has a `__main__` of its own."""
    if module == "__main__" and threading.current_thread() is not threading.main_thread():
        return {"__name__": "__main__"}
    return vars(importlib.import_module(module))


def _in_main(name: str, make: Callable, arguments: tuple) -> Any:
    made = make(*arguments)
    setattr(sys.modules["__main__"], name, made)
    return made


def _contents(function: FunctionType) -> dict[int, Any]:
    """What its cells hold, but for empty ones: what these name is defined later."""
    held = {}
    for i, cell in enumerate(function.__closure__ or ()):
        with suppress(ValueError):
            held[i] = cell.cell_contents
    return held


def _set_function(function: FunctionType, state: tuple[Any, dict[int, Any]]) -> None:
    attributes, held = state
    _function_setstate(function, attributes)
    for i, value in held.items():
        (function.__closure__ or ())[i].cell_contents = value


def _empty_cell(_: CellType) -> Any:
    return CellType, ()


def _code(code: CodeType) -> Any:
    """With the name of its file, which cloudpickle leaves out since 3.1.3."""
    return _code_of, (code.co_filename, *_code_reduce(code))


def _code_of(file: str, make: Callable, arguments: tuple) -> CodeType:
    return make(*arguments).replace(co_filename=file)


def _cached_function(function: Any) -> Any:
    if function.__module__ != "__main__" and "<locals>" not in function.__qualname__:
        return NotImplemented  # found by its name
    return _cached, (function.__wrapped__, function.cache_parameters())


def _cached(function: Callable, parameters: dict[str, Any]) -> Callable:
    return functools.lru_cache(**parameters)(function)


def _dispatching(name: str) -> Any:
    """A functools.singledispatch without the functions that it chooses from."""

    def first(*_: Any) -> None: ...

    first.__name__ = name
    return functools.singledispatch(first)


DISPATCHES = _dispatching("").__code__  # that all of them run


def _register(function: Any, registry: dict[type, Callable]) -> None:
    for kind, chosen in registry.items():
        function.register(kind, chosen)
    functools.update_wrapper(function, registry[object])


def _cached_attribute(attribute: functools.cached_property) -> Any:
    """Before Python 3.12 it has a lock."""
    return _cached_property, (attribute.func, attribute.attrname)


def _cached_property(function: Callable, name: str | None) -> functools.cached_property:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _method(method: MethodType) -> Any:
    is_shell = method.__name__ == "get_ipython"
    return (getattr, (builtins, "get_ipython")) if is_shell else NotImplemented


def _refuse_connection(_: Connection) -> Any:
    raise TypeError("a Connection is of this process: give a Queue of multiprocessing.Manager()")


def _refuse_part(_: Any) -> Any:
    raise TypeError(
        "a DTensor is a part of a tensor: give its full_tensor(), or of a model "
        "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"
    )


def _exit(_: Any) -> Any:
    return getattr, (sys, "exit")


BY_NAME = {  # of classes that may not have been imported
    ("torch", "DTensor"): _refuse_part,
    ("IPython", "ExitAutocall"): _exit,
    ("IPython", "ZMQExitAutocall"): _exit,
}


def is_of_each(value: Any) -> bool:
    """Whether every process has its own, or it is a method of one, as numpy.random.rand is."""
    return _place_of_each(getattr(value, "__self__", value)) is not None


def _of_each(value: Any) -> Any:
    """Of the notebook's a rank has its own."""
    if place := _place_of_each(value):
        module, name = place
        return getattr, (sys.modules[module], name)
    return NotImplemented


def _place_of_each(value: Any) -> tuple[str, str] | None:
    places = (place for place in OF_EACH if value is _found(*place))
    return None if value is None else next(places, None)


def is_named(value: Any) -> bool:
    """Whether its module, which is no notebook, has it by its name."""
    module = value.__module__
    return module != "__main__" and _found(module, value.__name__) is value


def _found(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _mapped_array(array: np.memmap) -> Any:
    """The same part of its file; a view of it, and one whose file may be gone, is copied."""
    import numpy as np

    if isinstance(array.base, np.ndarray) or array.mode == "c" or not array.flags.c_contiguous:
        return NotImplemented
    if array.filename is None or not os.path.isfile(array.filename):
        return NotImplemented
    mode = "r" if array.mode == "r" else "r+"
    return np.memmap, (array.filename, array.dtype, mode, array.offset, array.shape)


def _module_of(function: FunctionType) -> str | None:
    """The module whose globals it uses: it has made it, perhaps around a function of a cell."""
    name = function.__globals__.get("__name__", "__main__")
    module = sys.modules.get(name)
    importable = getattr(module, "__spec__", None) and vars(module) is function.__globals__
    return name if importable and name != "__main__" else None


def _is_found(name: str, file: str) -> bool:
    """Whether ranks, which have this process's `sys.path`, find this file by this name."""
    for finder in sys.meta_path:
        with suppress(Exception):  # other people's, with an interface of Python 3.3 for example
            if spec := finder.find_spec(name, None, None):  # the first one counts
                return os.path.realpath(spec.origin or "") == os.path.realpath(file)
    return False


def _submodules(function: FunctionType) -> list[ModuleType]:
    """Of `package.module`, which a function names, those that cloudpickle does not see: it does not
    look into functions that this one defines.
    """
    code = function.__code__
    names = names_in(code)
    if names == {*code.co_names}:
        return []
    used = [function.__globals__.get(name) for name in names]
    return _find_imported_submodules(code.replace(co_names=(*names,)), used)


def names_in(code: CodeType) -> set[str]:
    """The names that a function looks up, also in the functions that it defines."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names}.union(*map(names_in, inner))


# Why a value cannot be sent.


def has_magic(function: FunctionType) -> bool:
    """Whether it has a line that begins with ! or %."""
    names = names_in(function.__code__)
    return "get_ipython" in names and bool(MAGIC & names)


def why_not(names: dict[str, Any], error: Exception) -> str:
    """Which of these values cannot be pickled, of a function what it uses, and why.

    Args:
        error: of all of them together.
    """
    for name, value in names.items():
        if not (found := _error_of(value)):
            continue
        for used, inner in used_by(value):
            if inner_error := _error_of(inner):
                return f"{name} uses {used}: {_with_advice(inner_error)}"
        return f"{name}: {_with_advice(found)}"
    return _with_advice(error)


def _error_of(value: object) -> Exception | None:
    try:
        Pickler(call=True).dump(value)
    except Exception as error:
        return error
    return None


def _with_advice(error: Exception) -> str:
    text = str(error) or type(error).__name__
    cures = [cure for said, cure in ADVICE.items() if said in text]
    return ": ".join([text, *cures])


def used_by(value: Any) -> Iterator[tuple[str, Any]]:
    """What a function has of its surroundings, by name."""
    if not isinstance(value, FunctionType):
        return
    for i, held in _contents(value).items():
        yield value.__code__.co_freevars[i], held
    for name in sorted(names_in(value.__code__)):
        if name in value.__globals__:
            yield name, value.__globals__[name]
