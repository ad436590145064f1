"""What torch_xla says of its process: how often it compiled and ran; which device holds what, and
what devices send.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..pictures.shards import Part
from ..style import plural

if TYPE_CHECKING:
    from torch import Tensor


KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
COLLECTIVE = re.compile(rf"= (.+?) ({KINDS})(-start)?\(")


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


def collectives(*tensors: Tensor) -> Counter[tuple[str, str, int]]:
    """In the program of lazy tensors: {(kind, shape that comes out, devices in a group): times}.

    With XLA_DUMP_POST_OPTIMIZATIONS=1 in the environment the program is the one that XLA has
    partitioned.
    """
    from torch_xla import _XLAC

    found: Counter[tuple[str, str, int]] = Counter()
    for line in _XLAC._get_xla_tensors_hlo(list(tensors)).splitlines():
        if match := COLLECTIVE.search(line):
            result, kind, started = match.groups()
            shapes = [shape for shape in re.findall(r"\w+\[[\d,]*\]", result) if shape != "u32[]"]
            if started and kind != "all-reduce":  # asynchronous: inputs, then outputs
                shapes = shapes[len(shapes) // 2 :]
            found[kind, " ".join(shapes), _members(line)] += 1
    return found


def _members(line: str) -> int:
    """Among how many devices: groups are listed, {{0,1},{2,3}}, or counted, [2,2]<=[4]."""
    groups = re.search(r"replica_groups=(\S+)", line)
    if groups is None:  # a collective-permute has pairs
        return 2
    if "{{" in groups[1]:
        return groups[1].split("}")[0].count(",") + 1
    return int(re.findall(r"\d+", groups[1])[1])


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
