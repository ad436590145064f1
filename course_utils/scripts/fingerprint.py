"""Whether two processes made the same values: the parts of each, as texts by where they stand.

Parts are those that a launch pickles, so that the same in both is the same on a rank. A function is
its code, defaults and closure, and a class its attributes; those of a module are their name.
"""

import dis
import functools
import hashlib
import inspect
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from cloudpickle import CloudPickler

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
OF_PYTHON = {  # attributes of a class that follow from the others, or from where it stands
    "__abstractmethods__",
    "__annotations__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__slotnames__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
    "_value2member_map_",
}
ONLY_LAYOUT = {"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME"}  # of bytecode
JUMPS = {*dis.hasjrel, *dis.hasjabs}
ONLY_HERE = "something that cannot be copied"  # a lock, a file, a generator

Memo = dict[int, tuple[Any, str]]  # objects by their id, with the paths where they were met


class Fingerprint:
    """What values are made of; `difference` tells two of them apart.

    Args:
        values: by name. Objects that they share are told from objects that are equal.
        moved: other names for modules, or for what is in them.
    """

    def __init__(self, values: Mapping[str, Any], moved: Mapping[str, str] | None = None) -> None:
        self.moved = moved or {}
        shared: Memo = {}
        self.texts = {name: self._parts(name, value, shared) for name, value in values.items()}

    def difference(self, other: "Fingerprint") -> tuple[str, str, str, str] | None:
        """The first part that the other one has otherwise: name, path, both texts."""
        for name, ours in self.texts.items():
            theirs = other.texts[name]
            for path in ours | theirs:
                here, there = ours.get(path, "nothing"), theirs.get(path, "nothing")
                if here != there or here == ONLY_HERE:
                    return name, path, here, there
        return None

    def _parts(self, path: str, value: Any, shared: Memo) -> dict[str, str]:
        """The text of each part, by its path.

        A function or class may be an older one of the same text, whose cell ran again: it is known
        again in one value only, any other object in all of them.
        """
        texts: dict[str, str] = {}
        definitions: Memo = {}
        todo = deque([(path, value)])
        while todo:
            path, value = todo.popleft()
            met = definitions if isinstance(value, FunctionType | type) else shared
            if type(value) not in (*PLAIN, tuple, frozenset, CodeType):  # Python may share those
                if id(value) in met:
                    texts[path] = f"the same as {met[id(value)][1]}"
                    continue
                met[id(value)] = value, path  # kept, or another object could get its id
            try:
                texts[path], parts = self._taken_apart(path, value)
            except Exception:  # whatever an object says when it is asked for its state
                texts[path], parts = ONLY_HERE, []
            todo.extendleft(reversed([*parts]))
        return texts

    def _named(self, module: str, name: str) -> str:
        full = f"{module}.{name}"
        return self.moved.get(full, f"{self.moved.get(module, module)}.{name}")

    def _taken_apart(self, path: str, value: Any) -> tuple[str, Iterable[tuple[str, Any]]]:
        """A text for a value without its parts, and the parts."""
        kind = type(value)
        if kind in PLAIN:
            return repr(value), []
        if isinstance(value, FunctionType | type):
            if found := place_of(value):
                return self._named(*found), []
            if isinstance(value, type):
                return f"class {value.__qualname__}", _of_class(path, value)
            return f"function {value.__qualname__}", _of_function(path, value)
        if isinstance(value, TypeVar):
            return f"TypeVar {value.__name__}", []
        if isinstance(value, ModuleType):
            return f"module {self.moved.get(value.__name__, value.__name__)}", []
        if isinstance(value, CodeType):
            return f"bytecode (hash {_hash(_of_code(value))})", []
        if kind in (list, tuple):
            return f"a {kind.__name__} of {len(value)}", _items(path, value)
        if kind is dict:
            return f"a dict of {len(value)}", _pairs(path, value.items())
        if kind in (set, frozenset):
            alone = [str(self._parts("", element, {})) for element in value]
            return f"a {kind.__name__} of {len(value)}", _items(path, sorted(alone))
        if hasattr(value, "cache_parameters"):  # functools.cache: what it keeps does not travel
            return "cached", [(path, value.__wrapped__)]
        if numbers := _numbers(value):
            return numbers, []

        reducer = CloudPickler.dispatch_table.get(kind)
        reduced = reducer(value) if reducer else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            return self._named(getattr(value, "__module__", ""), reduced), []
        text = value.name if isinstance(value, Enum) else f"of type {kind.__name__}"
        maker, arguments, *state = reduced
        return text, [*_of_reduced(path, value, maker, arguments, *state)]


def place_of(value: Any) -> tuple[str, str] | None:
    """The module, and the name in it, where every process finds this very object."""
    with suppress(Exception):  # it has no such place
        module = value.__module__
        name = getattr(value, "__qualname__", None) or value.__reduce_ex__(4)  # torch.int8
        found = functools.reduce(getattr, name.split("."), sys.modules[module])
        if found is value and module != "__main__":
            return module, name
    return None


def _of_function(path: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    yield f"{path}'s code", code
    for word, parameter in inspect.signature(function, follow_wrapped=False).parameters.items():
        if parameter.default is not parameter.empty:
            yield f"{path}'s default {word}", parameter.default
    for word, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is still empty
            yield f"{path}'s variable {word}", cell.cell_contents
    for word, value in vars(function).items():
        yield f"{path}.{word}", value


def _of_class(path: str, value: type) -> Iterator[tuple[str, Any]]:
    yield f"{path}'s bases", value.__bases__
    for word, part in vars(value).items():
        if word not in OF_PYTHON:
            yield f"{path}.{word}", part


def _of_code(code: CodeType) -> list:
    """What the code does; not where it stands, nor how Python calls what the same cell imports."""
    knows_line = "__firstlineno__" in code.co_names  # a class inside, since Python 3.13
    steps: list = [code.co_varnames, code.co_freevars, code.co_cellvars]
    for step in dis.get_instructions(code):
        if step.opname in ONLY_LAYOUT:
            continue
        value = step.argval
        if isinstance(value, CodeType):
            value = _of_code(value)
        elif isinstance(value, frozenset):
            value = sorted(map(repr, value))
        elif step.opcode in JUMPS or (knows_line and value == code.co_firstlineno):
            value = None
        steps.append((step.opname.replace("LOAD_METHOD", "LOAD_ATTR"), repr(value)))
    return steps


def _of_reduced(path: str, value: Any, maker: Any, args: tuple, *more: Any) -> Iterator:
    """What `__reduce_ex__` gave for this value, by words that lead to it."""
    state, items, pairs = (*more, None, None, None)[:3]
    yield f"{path}'s maker", maker
    for number, argument in enumerate(args):
        of_type = f"type({path})"
        yield of_type if argument is type(value) else f"{path}, part {number}", argument
    for number, part in enumerate(state if type(state) is tuple else [state]):
        if type(part) is dict:
            yield from ((f"{path}.{word}", value) for word, value in part.items())
        elif part is not None:
            yield f"{path}'s state, part {number}", part
    yield from _items(path, items or ())
    yield from _pairs(path, pairs or ())


def _items(path: str, values: Iterable) -> list[tuple[str, Any]]:
    return [(f"{path}[{number}]", value) for number, value in enumerate(values)]


def _pairs(path: str, pairs: Iterable[tuple]) -> Iterator[tuple[str, Any]]:
    for number, (key, value) in enumerate(pairs):
        if type(key) in PLAIN:
            yield f"{path}[{key!r}]", value
        else:
            yield f"{path}'s key {number}", key
            yield f"{path}'s value {number}", value


def _numbers(value: Any) -> str | None:
    """A tensor or an array in words, with a hash of its bytes; None for anything else."""
    torch = sys.modules.get("torch")
    if torch and type(value) is torch.Tensor and value.layout is torch.strided:
        if value.is_meta:
            return f"{value.dtype} {tuple(value.shape)} on meta"
        data = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        first, data = data[:3].tolist(), data.view(torch.uint8).numpy()
        grad = ", with a gradient" if value.requires_grad else ""
        about = f"a tensor, {value.dtype} {tuple(value.shape)} on {value.device}{grad}"
    elif (
        type(value).__module__ == "numpy" and hasattr(value, "dtype") and not value.dtype.hasobject
    ):
        data, first = value, value.ravel()[:3].tolist()
        about = f"an array, {value.dtype} {tuple(value.shape)}"
    else:
        return None
    begins = ", ".join(f"{number:.4g}" for number in first)
    return f"{about}, [{begins}, …] (hash {_hash(data.tobytes())})"


def _hash(value: Any) -> str:
    data = value if type(value) is bytes else repr(value).encode()
    return hashlib.sha256(data).hexdigest()[:12]
