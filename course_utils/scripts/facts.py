"""What names stand for, as digests that another process can compare: a value, or each part of a
definition, which is a function or a class of the notebook's.
"""

import dis
import functools
import hashlib
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, NewType, ParamSpec, TypeVar

import torch
from cloudpickle import CloudPickler
from torch.storage import TypedStorage, UntypedStorage

from ..ranks.pickler import is_named
from .copies import in_the_script
from .literals import SCALARS

FUNCTIONS = FunctionType | functools._lru_cache_wrapper
PLAIN = (*SCALARS, complex, list, tuple, dict)
ONLY_LAYOUT = {"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME"}  # of bytecode
JUMPS = {*dis.hasjrel, *dis.hasjabs}
FOLLOWS = {  # attributes of a class that follow from the others, or from where it stands
    "__abstractmethods__",
    "__annotations__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__signature__",
    "__slotnames__",
    "__static_attributes__",
    "__weakref__",
    "_backward_cls",
    "_abc_impl",
    "_value2member_map_",
}


class Part(NamedTuple):
    """A name of the notebook's, and where in its definition: "" for a value."""

    name: str
    place: str


class Facts(NamedTuple):
    """Digests; None for what cannot be described, such as a lock."""

    parts: dict[Part, bytes | None]
    together: bytes | None  # of values, defaults and attributes: what they share is one object


def facts(namespace: dict[str, Any], names: list[str]) -> Facts:
    parts, values = {}, []
    for name in names:
        value = namespace.get(name)
        if is_definition(value):
            for place, part in parts_of(value).items():
                parts[Part(name, place)] = _digest(part, namespace)
                values += [part] if is_shared(part) else []
        else:
            parts[Part(name, "")] = _digest(value, namespace)
            values.append(value)
    return Facts(parts, _digest(values, namespace))


def is_definition(value: Any) -> bool:
    return isinstance(value, FUNCTIONS | type) and value.__module__ == "__main__"


def parts_of(definition: Any) -> dict[str, Any]:
    """By places: `.lr` is an attribute of a class, `.fit.__defaults__` of its function."""
    if isinstance(definition, FunctionType):
        variables = definition.__code__.co_freevars
        attributes = ("__code__", "__defaults__", "__kwdefaults__")
        parts = {f".{name}": getattr(definition, name) for name in attributes}
        for name, cell in zip(variables, definition.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is still empty
                parts[f"'s variable {name}"] = cell.cell_contents
        return parts | {f".{name}": value for name, value in vars(definition).items()}
    if isinstance(definition, functools._lru_cache_wrapper):
        return {"'s function": definition.__wrapped__, "'s size": definition.cache_parameters()}
    parts = {".__bases__": definition.__bases__, ".__class__": type(definition)}
    for name, value in vars(definition).items():
        if name in FOLLOWS or isinstance(value, MemberDescriptorType):
            continue
        if _is_of_a_library(name, value):
            continue
        own_name = f"{definition.__qualname__}.{name}"
        if isinstance(value, FunctionType | type) and value.__qualname__ == own_name:
            inside = parts_of(value)
            parts |= {f".{name}{place}": part for place, part in inside.items()}
        else:
            parts[f".{name}"] = value
    return parts


def _is_of_a_library(name: str, value: Any) -> bool:
    """Whether pydantic or attrs has written it into a class."""
    file = value.__code__.co_filename if isinstance(value, FunctionType) else ""
    return name.startswith("__pydantic_") or file.startswith("<attrs generated")


def is_shared(part: Any) -> bool:
    """Whether a change of it under another name can be seen."""
    alone = isinstance(part, (*SCALARS, complex, CodeType, type))
    return not alone and not hasattr(part, "__get__")


def is_importable(value: Any) -> bool:
    """Whether every process has it by its name in its module."""
    with suppress(AttributeError, KeyError):
        if value.__module__ == "__main__":
            return False
        if is_named(value):  # SDPBackend has another __qualname__
            return True
        module = sys.modules[value.__module__]
        return functools.reduce(getattr, value.__qualname__.split("."), module) is value
    return False


class References(NamedTuple):
    """What the script has to have for a value: names of the notebook's, and modules."""

    names: set[str]
    modules: set[str]


def references(value: Any, namespace: dict[str, Any]) -> References:
    description = _Description(namespace)
    with suppress(Exception):  # whatever an object says when it is asked for its state
        description.dump(value)
    return description.references


def _digest(value: Any, namespace: dict[str, Any]) -> bytes | None:
    description = _Description(namespace)
    try:
        description.dump(value)
    except Exception:  # whatever an object says when it is asked for its state
        return None
    return description.hash.digest()


class _Description(pickle._Pickler):
    """A pickle of what a launch would send, but for what differs between two processes."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.references = References(set(), set())
        self.hash = hashlib.sha256()
        self.dispatch_table = CloudPickler.dispatch_table
        super().__init__(SimpleNamespace(write=self.hash.update), 5)  # ty: ignore

    def memoize(self, value: Any) -> None:
        if not isinstance(value, str | bytes | tuple):  # equal ones may be one object, or several
            super().memoize(value)  # ty: ignore[missing-attribute]

    def reducer_override(self, value: Any) -> Any:
        if type(value) in PLAIN:
            return NotImplemented
        if isinstance(value, ModuleType):
            return self._by_name(value.__name__, "")
        if isinstance(value, FUNCTIONS | type):
            module, name = value.__module__, value.__qualname__
            if module == "__main__":  # a file has it by this name
                self.references.names.add(name.partition(".")[0])
            if module == "__main__" and self.namespace.get(name) is value:
                return name
            if module == "__main__" or not is_importable(value):
                return str, (name,), parts_of(value)
            return self._by_name(module, name)
        if isinstance(value, TypeVar | ParamSpec | NewType) and value.__module__ == "__main__":
            self.references.names.add(value.__name__)
            return value.__name__
        if isinstance(value, CodeType):
            return str, (value.co_name,), [value.co_varnames, *_steps(value)]
        if isinstance(value, functools.cached_property):
            return str, (value.attrname,), value.func
        if isinstance(value, set | frozenset):
            return str, ("a set",), sorted(value, key=repr)
        if isinstance(value, TypedStorage):
            return str, (str(value.dtype),), value._untyped_storage
        if isinstance(value, UntypedStorage):
            data = torch.empty(0, dtype=torch.uint8).set_(value.cpu())
            return str, (hashlib.sha256(data.numpy()).hexdigest(),)
        return NotImplemented

    def save_global(self, value: Any, name: str | None = None) -> None:
        self.save(name)  # ty: ignore[missing-attribute]

    def _by_name(self, module: str, name: str) -> str:
        self.references.modules.add(module)
        return f"{in_the_script(module)}.{name}"


def _steps(code: CodeType) -> Iterator[tuple[str, Any]]:
    """What the code does; not how Python calls what the same cell imports."""
    for step in dis.get_instructions(code):
        if step.opcode in JUMPS:
            yield step.opname, None
        elif step.opname not in ONLY_LAYOUT:
            value = in_the_script(step.argval) if step.opname == "IMPORT_NAME" else step.argval
            yield step.opname.replace("LOAD_METHOD", "LOAD_ATTR"), value
