"""What torch_xla says of its process: how often it compiled and ran; which device holds what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..pictures.shards import Part
from ..style import plural

if TYPE_CHECKING:
    from torch import Tensor


class Counters(NamedTuple):
    """How often this process compiled a program, ran one, and copied to and from the device."""

    compiles: int = 0
    executions: int = 0
    uploads: int = 0
    downloads: int = 0

    def __sub__(self, before: Counters) -> Counters:
        """What happened in between: `xla.counters() - before`."""
        return Counters(*(a - b for a, b in zip(self, before, strict=True)))

    def __repr__(self) -> str:
        counts = self._asdict().items()
        return ", ".join(plural(times, name.removesuffix("s")) for name, times in counts)


def counters() -> Counters:
    """The counts since this process began, once this thread's device has finished its work."""
    from torch_xla.debug import metrics

    wait_for_device()  # a run is counted when it ends, which `sync` does not wait for

    def times(name: str) -> int:
        return (metrics.metric_data(name) or (0,))[0]

    return Counters(
        compiles=times("CompileTime"),
        executions=times("ExecuteTime") + times("ExecuteReplicatedTime"),  # the latter with SPMD
        uploads=times("TransferToDeviceTime"),
        downloads=times("TransferFromDeviceTime"),
    )


def wait_for_device() -> None:
    """Until this thread's device has done what it was given."""
    from torch_xla import _XLAC

    if _XLAC._xla_runtime_is_initialized():
        mine = _XLAC._xla_real_devices([_XLAC._xla_get_default_device()])
        _XLAC._xla_wait_device_ops([] if mine == ["SPMD:0"] else mine)  # [] is all of them


def sharding(tensors: Mapping[str, Tensor]) -> list[list[Part]]:
    """What each device holds of tensors by name; `shards.picture` draws it.

    Call it in the program of `xla.launch(…, spmd=True)`. What is still to be computed is computed
    first: XLA decides then how it is sharded. A tensor that is not sharded lies whole on every
    device.
    """
    import torch_xla.runtime as xr
    from torch_xla import _XLAC

    held: list[list[Part]] = [[] for _ in range(xr.global_runtime_device_count())]
    for name, tensor in tensors.items():
        tensor = getattr(tensor, "global_tensor", tensor)  # of what mark_sharding returns
        _XLAC._xla_sync_multi([tensor], [], wait=True, sync_xla_data=False)

        whole = tuple(slice(0, n) for n in tensor.shape)
        places = [whole] * len(held)
        if "devices" in _XLAC._get_xla_sharding_spec(tensor):  # else "" or "{replicated}"
            [shards] = _XLAC._get_local_shard_replica_and_indices([tensor])
            places = [whole if indices is ... else indices for _, indices in shards]
        for parts, cut in zip(held, places, strict=True):
            start = tuple(s.start for s in cut)
            shape = tuple(s.stop - s.start for s in cut)
            parts.append(Part(name, tuple(tensor.shape), start, shape))
    return held
