"""Values that travel between the notebook and its ranks, each once.

Functions and classes of cells go by value. The numbers of tensors and arrays lie beside the pickle;
a megabyte or more lies in a file without a name, which the other side maps instead of copying.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import importlib
import io
import mmap
import os
import pickle
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from ..errors import CourseError
from ..machine import usable_memory
from ..style import size
from . import references
from .unpicklable import has_magic, way_to

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 1 << 20  # bytes; less is copied, because a mapped tensor cannot be resized
ALIGN = 64  # bytes
# Of every function that `functools.singledispatch` makes.
DISPATCHING = functools.singledispatch(print).__code__  # ty: ignore[missing-attribute]

HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # of tensors

Part = tuple[int, int]  # of a file or of bytes: where it begins, and where it ends


class CannotBeSent(CourseError):
    """A function or a value that no other process can get; `why`, in words."""

    def __init__(self, refusal: str, why: str) -> None:
        super().__init__(f"{refusal}: {why}")
        self.why = why


class File:
    """A file without a name; among the arguments of a new process, it is open there, too."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def new(cls) -> File:
        if hasattr(os, "memfd_create"):
            with suppress(OSError):  # where a container forbids it
                return cls(os.memfd_create("values"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def __reduce__(self) -> tuple[Callable, tuple]:
        return _inherited, (reduction.DupFd(self.descriptor),)

    def __del__(self) -> None:
        os.close(self.descriptor)


def _inherited(duplicate: Any) -> File:
    return File(duplicate.detach())


class Parcel(NamedTuple):
    """A pickle and what lies beside it, all in `data` or, if that is None, in a file.

    `parts` begin with the pickle and its buffers; `storages` tells which parts hold the bytes of
    each storage, as (first byte in it, number of the part, whether it is one packed tensor).
    """

    data: bytes | None
    parts: list[Part]
    buffers: int
    storages: list[list[tuple[int, int, bool]]]


def pack(
    value: object, refusal: str, names: dict[str, Any], *, call: bool = False
) -> tuple[Parcel, File | None]:
    """Write `value`, with what cells define; the file is None where there is little to write.

    Args:
        refusal: what the message begins with if it cannot be sent.
        names: the parts of the value as that message calls them.
        call: a function that goes to a rank, where `__main__` is to have what cells define.

    Raises:
        CannotBeSent
    """
    pickler = Pickler(call=call)
    try:
        pickler.dump(value)
    except Exception as error:
        raise CannotBeSent(refusal, way_to(names, _why_not) or str(error)) from None

    chunks = [pickler.text.getbuffer(), *pickler.buffers]
    storages = []
    for storage in pickler.storages.values():
        pieces = storage.pieces()
        storages.append(
            [(begin, len(chunks) + i, packed) for i, (begin, packed, _) in enumerate(pieces)]
        )
        chunks += [data for _, _, data in pieces]

    parts, end = [], 0
    for chunk in chunks:
        begin = -(-end // ALIGN) * ALIGN
        end = begin + chunk.nbytes
        parts.append((begin, end))
    if end < LARGE:
        joined = bytearray(end)
        for (begin, stop), chunk in zip(parts, chunks, strict=True):
            joined[begin:stop] = chunk
        return Parcel(bytes(joined), parts, len(pickler.buffers), storages), None

    free = usable_memory()[1]
    if end > free:  # a container would end whoever writes it
        raise CannotBeSent(
            refusal,
            f"it takes {size(end)}, and {size(free)} of memory is free. Send what it is made from, "
            "such as the name of a file",
        )
    try:
        file = _written(chunks, parts)
    except OSError as error:
        raise CannotBeSent(
            refusal, f"{size(end)} could not be written ({error.strerror})"
        ) from None
    return Parcel(None, parts, len(pickler.buffers), storages), file


def _why_not(value: object) -> str:
    """Why it cannot be pickled, in the pickler's words; "" where it can."""
    try:
        Pickler().dump(value)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _written(chunks: list[memoryview], parts: list[Part]) -> File:
    """A file with these chunks at their places."""
    file = File.new()
    for (begin, _), chunk in zip(parts, chunks, strict=True):
        written = 0
        while written < chunk.nbytes:
            written += os.pwrite(file.descriptor, chunk[written:], begin + written)
    return file


def unpack(parcel: Parcel, file: File | None, *, access: int = mmap.ACCESS_COPY) -> Any:
    """The value; what is written to it stays in this process.

    Large tensors and arrays of one parcel share a mapping, which is freed when the last one is.

    Args:
        access: ACCESS_WRITE where nobody else will read the file, which saves a copy.
    """
    if parcel.data is None:
        assert file is not None, "what is not in the parcel lies in its file"
        data = memoryview(mmap.mmap(file.descriptor, 0, access=access))
    else:
        data = memoryview(parcel.data)
    parts = [data[begin:end] for begin, end in parcel.parts]
    pickled, *buffers = parts[: 1 + parcel.buffers]
    _opening.storages = [
        [(begin, _mapped(parts[number]), packed) for begin, number, packed in pieces]
        for pieces in parcel.storages
    ]
    try:
        return pickle.loads(pickled, buffers=buffers)
    finally:
        del _opening.storages


_opening = threading.local()  # the storages of the parcel that this thread opens


def _mapped(data: memoryview) -> Tensor:
    """A tensor of these bytes; of few bytes a copy, which can be resized."""
    import torch

    if len(data) >= LARGE:
        return torch.frombuffer(data, dtype=torch.uint8)
    copy = torch.empty(len(data), dtype=torch.uint8, device="cpu")
    _memory(copy)[:] = data
    return copy


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of its storage, which stays as it is: after `numpy()` it could not be resized."""
    storage = tensor.untyped_storage()
    count = storage.nbytes()
    if not count:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * count).from_address(storage.data_ptr())).cast("B")


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


def _of_main(name: str, make: Callable, arguments: tuple) -> Any:
    """What a cell defines, where whoever pickles it by its name will look it up."""
    made = make(*arguments)
    setattr(sys.modules["__main__"], name, made)
    return made


def _cached(function: Callable, parameters: dict[str, Any]) -> Callable:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Callable, name: str | None) -> functools.cached_property:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _dispatching(registry: dict[type, Callable]) -> Callable:
    dispatch = functools.singledispatch(registry[object])
    for kind, function in registry.items():
        dispatch.register(kind, function)
    return dispatch


class Pickler(cloudpickle.CloudPickler):
    """As cloudpickle's, with tensors beside the pickle, in `storages`, and large `buffers`.

    Tensors on an XLA device arrive on the CPU: in another process that device is another one, or
    taken. Of DDP its module arrives, because no group is left for it.
    """

    def __init__(self, *, call: bool = False) -> None:
        self.text = io.BytesIO()
        self.buffers: list[memoryview] = []
        self.storages: dict[int, Storage] = {}
        self.call = call
        self.main = vars(sys.modules["__main__"]) if call else {}
        super().__init__(self.text, protocol=5, buffer_callback=self._stays)
        if call:
            self.globals_ref[id(self.main)] = Namespace("__main__")

    def _stays(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether the buffer is to lie in the pickle."""
        data = buffer.raw()
        if data.nbytes >= LARGE:
            self.buffers.append(data)
        return data.nbytes < LARGE

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch and isinstance(value, torch.Tensor):
            return self._tensor(value)
        if torch and isinstance(value, torch.nn.parallel.DistributedDataParallel):
            return _itself, (value.module,)
        if stand_in := _in_a_rank(value):
            return stand_in
        if isinstance(value, functools._lru_cache_wrapper) and _is_of_a_cell(value):
            return _cached, (value.__wrapped__, value.cache_parameters())
        function = isinstance(value, types.FunctionType)
        if function and value.__code__ is DISPATCHING and _is_of_a_cell(value):
            return _dispatching, (dict(vars(value)["registry"]),)
        if type(value) is functools.cached_property:  # before Python 3.12 it has a lock
            return _cached_property, (value.func, value.attrname)
        if isinstance(value, types.FunctionType | type | types.ModuleType):
            if reference := references.of_module(value):
                return reference
        elif by_attributes := _by_attributes(value):
            return by_attributes
        numpy = sys.modules.get("numpy")
        # A rank's own file may be gone when the notebook gets the result.
        if numpy and self.call and isinstance(value, numpy.memmap):
            return references.of_mapped_file(value) or NotImplemented
        # cloudpickle knows modules by their type, and torch.backends.cudnn has a type of its own.
        if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)

        if has_magic(value):
            raise TypeError(f"{value.__name__} has a line with ! or %")
        if isinstance(value, Connection):  # its number is another file's in a rank
            raise TypeError("of this process alone: give a Queue of multiprocessing.Manager()")
        if wrapper := _module_of_wrapper(value):
            self.globals_ref.setdefault(id(value.__globals__), Namespace(wrapper))
        reduced: Any = super().reducer_override(value)
        if function and reduced is not NotImplemented:
            reduced[2][1]["_cloudpickle_submodules"] += references.submodules(value)
        if wrapper:
            _, attributes = reduced[2]
            attributes["__globals__"] = {}  # they are there, and may not be sent
        named = isinstance(value, types.FunctionType | type)
        if named and self.main.get(value.__name__) is value and reduced is not NotImplemented:
            make, arguments, *rest = reduced
            return _of_main, (value.__name__, make, arguments), *rest
        return reduced

    def _tensor(self, tensor: Tensor) -> Any:
        import torch

        kind = type(tensor)
        if kind.__name__ == "DTensor":
            raise TypeError("a DTensor is a part of a tensor")
        if kind not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        values = tensor.detach()
        if values.device.type == "xla":
            values = values.cpu()
        plain = (
            values.device.type == "cpu"
            and values.layout is torch.strided
            and not (values.is_quantized or values.is_conj() or values.is_neg() or values.is_nested)
        )
        if not plain:
            return NotImplemented
        address = values.untyped_storage()._cdata  # of what C++ knows as the storage
        if address not in self.storages:
            self.storages[address] = Storage(len(self.storages), values)
        storage = self.storages[address]
        layout = values.dtype, values.size(), values.stride(), values.storage_offset()
        storage.tensors[layout] = values
        of_parameter = isinstance(tensor, torch.nn.Parameter)
        made = _rebuilt, (storage.number, *layout, of_parameter, tensor.requires_grad)
        attributes = {**vars(tensor)}
        if tensor.is_leaf:  # of others no graph is sent, and what FSDP hooks to its outputs
            attributes |= {name: hooks for name in HOOKS if (hooks := getattr(tensor, name))}
        return *made, attributes or None, None, None, _set_on_tensor


def _by_attributes(value: Any) -> tuple | None:
    """How to send an object whose class has a `__getattr__`. Pickle asks for `__setstate__` before
    there are attributes, and one that reads an attribute then asks itself without end.
    """
    kind = type(value)
    if not hasattr(kind, "__getattr__") or hasattr(kind, "__setstate__"):
        return None
    if (kind.__reduce_ex__, kind.__reduce__) != (object.__reduce_ex__, object.__reduce__):
        return None
    made: Any = value.__reduce_ex__(5)
    return (*made, _set_attributes) if isinstance(made[2], dict | tuple) else None


def _module_of_wrapper(value: Any) -> str | None:
    """The library whose decorator has made this function around one of a cell."""
    if not isinstance(value, types.FunctionType) or value.__module__ != "__main__":
        return None
    name = value.__globals__.get("__name__", "__main__")
    module = sys.modules.get(name)
    importable = getattr(module, "__spec__", None) and vars(module) is value.__globals__
    return name if importable and name != "__main__" else None


def _in_a_rank(value: Any) -> tuple | None:
    """What a rank has in place of the notebook's streams, and of IPython's `exit`, `display` and
    `get_ipython`.
    """
    for name in ("stdout", "stderr"):
        if value is getattr(sys, name) or value is getattr(sys, f"__{name}__"):
            return getattr, (sys, name)
    kind = type(value)
    if kind.__name__.endswith("ExitAutocall"):
        return getattr, (sys, "exit")
    if kind is types.MethodType and value.__name__ == "get_ipython":
        return getattr, (builtins, "get_ipython")
    if kind is types.FunctionType and value.__module__ == "IPython.core.display_functions":
        return (getattr, (builtins, "display")) if value.__name__ == "display" else None
    return None


def _is_of_a_cell(value: Any) -> bool:
    """Whether pickle's way to send it, its name, is of use in this process only."""
    return value.__module__ == "__main__" or "<locals>" in value.__qualname__


def _itself(value: Any) -> Any:
    return value


class Storage:
    """The bytes of a storage, and the tensors that are sent of it."""

    def __init__(self, number: int, tensor: Tensor) -> None:
        self.number = number
        self.memory = _memory(tensor)
        self.tensors: dict[tuple, Tensor] = {}  # by layout
        self.packed: list[Tensor] = []

    def pieces(self) -> list[tuple[int, bool, memoryview]]:
        """What is to be sent, as (first byte, whether it is one packed tensor, data).

        All of the storage, or where tensors use less than half of it, what they use.
        """
        whole = self.memory
        stretches = self._stretches()
        if 2 * sum(end - begin for begin, end, _ in stretches) >= len(whole):
            stretches = [(0, len(whole), [*self.tensors.values()])]
        pieces: list[tuple[int, bool, memoryview]] = []
        for begin, end, tensors in stretches:
            first = tensors[0]
            if len(tensors) == 1 and 2 * first.numel() * first.itemsize < end - begin:
                self.packed.append(first.contiguous())  # a column of a matrix
                pieces.append((begin, True, _memory(self.packed[-1])))
            else:
                begin -= begin % ALIGN
                pieces.append((begin, False, whole[begin:end]))
        return pieces

    def _stretches(self) -> list[tuple[int, int, list[Tensor]]]:
        """From the first to the last byte of tensors that overlap."""
        stretches: list[tuple[int, int, list[Tensor]]] = []
        for tensor in sorted(self.tensors.values(), key=_extent):
            begin, end = _extent(tensor)
            if stretches and begin < stretches[-1][1]:
                first, last, before = stretches.pop()
                stretches.append((first, max(last, end), [*before, tensor]))
            else:
                stretches.append((begin, end, [tensor]))
        return stretches


def _extent(tensor: Tensor) -> Part:
    """From its first to its last byte, in its storage."""
    begin = int(tensor.storage_offset()) * tensor.itemsize
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    last = sum((count - 1) * stride for count, stride in steps)
    end = begin + (last + 1) * tensor.itemsize if tensor.numel() else begin
    return begin, end


def _rebuilt(
    number: int, dtype: Any, size: Any, stride: Any, offset: int, parameter: bool, grad: bool
) -> Tensor:
    import torch

    pieces = _opening.storages[number]
    begin, data, packed = next(
        piece for piece in reversed(pieces) if piece[0] <= offset * dtype.itemsize
    )
    offset -= begin // dtype.itemsize
    if packed:
        offset, stride = 0, torch.empty(size, device="meta").stride()
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    tensor.set_(data.untyped_storage(), offset, size, stride)
    return torch.nn.Parameter(tensor, grad) if parameter else tensor.requires_grad_(grad)


def _set_on_tensor(tensor: Tensor, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(tensor, name, value)


def _set_attributes(value: Any, state: dict[str, Any] | tuple) -> None:
    """What Python's own way to copy objects gives: attributes, or also those in `__slots__`."""
    attributes, slots = state if isinstance(state, tuple) else (state, {})
    if attributes:
        vars(value).update(attributes)
    for name, attribute in slots.items():
        object.__setattr__(value, name, attribute)
