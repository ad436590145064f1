"""Which device of an SPMD program holds which part of a tensor: read off torch_xla in the program, drawn outside."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import CourseError
from ..lessons.shards import Part, finding, picture

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, repr=False)
class Sharding:
    """What each device holds. Numbers, which a program can return; drawn when looked at."""

    by_device: list[list[Part]]
    title: str = ""

    def __repr__(self) -> str:
        says = finding(self.by_device, unit="device")
        return f"{self.title}: {says}" if self.title else says

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        return picture(self.by_device, title=self.title, unit="device")._repr_png_()


def sharding(what: Tensor | nn.Module | Mapping[str, Tensor], *, title: str = "") -> Sharding:
    """Which device holds which part of a tensor, of tensors by name, or of a module's parameters.

    Call it in the program of `xla.launch(…, spmd=True)` and return what it gives. What is still to be computed is
    computed first: XLA decides then how it is sharded. A tensor that is not sharded lies whole on every device.

    Raises:
        CourseError: there is no SPMD program here, or something is no XLA tensor.
    """
    xr = sys.modules.get("torch_xla.runtime")
    if xr is None or not xr.is_spmd():
        raise CourseError("xla.sharding(…) reads a running SPMD program: call it in the function that you give to "
                          "xla.launch(…, spmd=True), and return the picture.")
    named = _named(what)
    held: list[list[Part]] = [[] for _ in range(xr.global_runtime_device_count())]
    for name, tensor in named.items():
        for device, (start, shape) in enumerate(_parts(tensor, len(held))):
            held[device].append(Part(name, tuple(tensor.shape), start, shape))
    return Sharding(held, title)


def _named(what: Any) -> dict[str, Tensor]:
    import torch

    if isinstance(what, torch.nn.Module):
        what = dict(what.named_parameters())
    elif isinstance(what, torch.Tensor):
        what = {"tensor": what}
    if not isinstance(what, Mapping) or not what:
        raise CourseError(f"xla.sharding({type(what).__name__}): give a tensor, a module with parameters, or tensors "
                          "by name, for example {\"x\": x, \"weight\": layer.weight}.")
    found = {}
    for name, tensor in what.items():
        tensor = getattr(tensor, "global_tensor", tensor)  # what mark_sharding returns holds the tensor
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
            kind = f"on {tensor.device}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise CourseError(f"xla.sharding(…): {name} is no XLA tensor ({kind}); .to(torch_xla.device()) makes one.")
        found[name] = tensor
    return found


def _parts(tensor: Tensor, devices: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(start, shape) of what each device holds."""
    from torch_xla import _XLAC

    _XLAC._xla_sync_multi([tensor], [], wait=True, sync_xla_data=False)
    whole = (0,) * tensor.ndim, tuple(tensor.shape)
    if "devices" not in _XLAC._get_xla_sharding_spec(tensor):  # "" or "{replicated}"
        return [whole] * devices
    [shards] = _XLAC._get_local_shard_replica_and_indices([tensor])
    return [(tuple(i.start for i in indices), tuple(i.stop - i.start for i in indices))
            if isinstance(indices, list) else whole for _, indices in shards]
