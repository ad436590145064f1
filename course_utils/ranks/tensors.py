"""Tensors in a pickle, the bytes of each storage once.

They go as torch sends them, but for a tensor on an XLA device, which in another process is another
one, or taken: it arrives on the CPU. Of DDP its module arrives, because no group is left for it.
"""

import ctypes
import functools
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch._ops import OpOverload, OpOverloadPacket, _OpNamespace
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.storage import TypedStorage

from .files import LARGE


class Tensors:
    """The reducers of one pickler.

    Args:
        call: of a function's arguments, of which nothing may be lost without a word.
    """

    def __init__(self, *, call: bool) -> None:
        self.call = call
        self.by_type: dict[type, Callable[[Any], Any]] = {
            Tensor: self.tensor,
            Parameter: self.tensor,
            TypedStorage: self.typed,
            UntypedStorage: self.untyped,
            StorageBytes: StorageBytes.reduced,
            DistributedDataParallel: self.module,
            OpOverload: _operator,
            OpOverloadPacket: _operator,
            _OpNamespace: _operator,
        }
        self.storages: dict[int, StorageBytes] = {}  # by the address of what C++ knows as one

    def tensor(self, tensor: Tensor) -> Any:
        has_hooks = tensor._backward_hooks or tensor._post_accumulate_grad_hooks
        if self.call and has_hooks and tensor.is_leaf:
            raise TypeError("a tensor has hooks, which cannot be sent: register them in a rank")
        is_away = tensor.device.type == "xla"
        is_part = _is_small_view(tensor)
        if not (is_away or is_part or vars(tensor)):
            return NotImplemented
        values = tensor.detach()
        if is_away:
            values = values.cpu()
        elif is_part:
            values = values.clone()
        if isinstance(tensor, Parameter):
            values = Parameter(values, tensor.requires_grad)
        else:
            values.requires_grad_(tensor.requires_grad)
        # Attributes come when it is known, because they may lead back to it.
        make, arguments = values.__reduce_ex__(5)[:2]
        return make, arguments, vars(tensor), None, None, _set_attributes

    def typed(self, storage: TypedStorage) -> Any:
        return self._reduced(storage._untyped_storage, storage.dtype)

    def untyped(self, storage: UntypedStorage) -> Any:
        """Of a float8 tensor; torch makes it from one with a type all the same."""
        return self._reduced(storage, torch.uint8)

    def _reduced(self, storage: UntypedStorage, dtype: torch.dtype) -> Any:
        if storage.device.type != "cpu":
            return NotImplemented
        address = storage._cdata
        if address not in self.storages:
            self.storages[address] = StorageBytes(storage)
        return _typed, (self.storages[address], dtype)

    def module(self, model: DistributedDataParallel) -> Any:
        return _itself, (model.module,)


class StorageBytes:
    """Those of a storage, for all Python objects that stand for it; opened, a storage."""

    def __init__(self, storage: UntypedStorage) -> None:
        self.storage = storage

    def reduced(self) -> tuple[Callable, tuple]:
        """The bytes as they lie there: after a tensor's `numpy()` nobody could resize it."""
        count = self.storage.nbytes()
        if not count:
            return _opened, (b"",)
        memory = (ctypes.c_ubyte * count).from_address(self.storage.data_ptr())
        return _opened, (pickle.PickleBuffer(memory),)


def _opened(data: Any) -> UntypedStorage:
    """A storage of these bytes, or of few of them a copy, which can be resized."""
    if len(data) >= LARGE:
        return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    if not data:
        return UntypedStorage(0)
    return UntypedStorage.from_buffer(data, dtype=torch.uint8)


def _typed(storage: UntypedStorage, dtype: torch.dtype) -> TypedStorage:
    return TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _operator(operator: Any) -> Any:
    """By its name, as aten.mm.default, aten.mm or aten."""
    name = operator.name if isinstance(operator, _OpNamespace) else str(operator)
    return _operator_of, (name,)


def _operator_of(name: str) -> Any:
    return functools.reduce(getattr, name.split("."), torch.ops)


def _set_attributes(tensor: Tensor, attributes: dict[str, Any]) -> None:
    vars(tensor).update(attributes)


def _itself(value: Any) -> Any:
    return value


def _is_small_view(tensor: Tensor) -> bool:
    """Whether it uses less than half of a large storage."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    whole = tensor.untyped_storage().nbytes()
    return whole >= LARGE and 2 * tensor.nbytes < whole
