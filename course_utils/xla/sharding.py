"""Which device of an SPMD program holds which part of a tensor: read off torch_xla in the program, drawn outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..lessons.shards import Part, finding, picture

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, repr=False)
class Sharding:
    """What each device holds: numbers, which a program can return; drawn when looked at."""

    by_device: list[list[Part]]
    title: str = ""

    def __repr__(self) -> str:
        return ": ".join(filter(None, (self.title, finding(self.by_device, unit="device"))))

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        return picture(self.by_device, title=self.title, unit="device")._repr_png_()


def sharding(what: nn.Module | Mapping[str, Tensor], *, title: str = "") -> Sharding:
    """Which device holds which part of tensors by name, or of a module's parameters.

    Call it in the program of `xla.launch(…, spmd=True)` and return what it gives. What is still to be computed is
    computed first: XLA decides then how it is sharded. A tensor that is not sharded lies whole on every device.
    """
    import torch_xla.runtime as xr

    named = dict(what) if isinstance(what, Mapping) else dict(what.named_parameters())
    held: list[list[Part]] = [[] for _ in range(xr.global_runtime_device_count())]
    for name, tensor in named.items():
        for parts, (start, shape) in zip(held, _parts(tensor, len(held)), strict=True):
            parts.append(Part(name, tuple(tensor.shape), start, shape))
    return Sharding(held, title)


def _parts(tensor: Tensor, devices: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(start, shape) of what each device holds."""
    from torch_xla import _XLAC

    tensor = getattr(tensor, "global_tensor", tensor)  # what mark_sharding returns holds the tensor
    _XLAC._xla_sync_multi([tensor], [], wait=True, sync_xla_data=False)
    whole = (0,) * tensor.ndim, tuple(tensor.shape)
    if "devices" not in _XLAC._get_xla_sharding_spec(tensor):  # "" or "{replicated}"
        return [whole] * devices
    [shards] = _XLAC._get_local_shard_replica_and_indices([tensor])
    return [(tuple(i.start for i in indices), tuple(i.stop - i.start for i in indices))
            if isinstance(indices, list) else whole for _, indices in shards]
