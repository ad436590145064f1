"""What torch_xla's own counters say of this process: programs compiled and run, tensors copied."""

from __future__ import annotations

from typing import NamedTuple


class Counters(NamedTuple):
    """How often this process compiled a program, ran one, and copied tensors to and from the device."""

    compiles: int = 0
    executions: int = 0
    uploads: int = 0
    downloads: int = 0

    def __sub__(self, before: Counters) -> Counters:
        """What happened in between: `xla.counters() - before`."""
        return Counters(*(a - b for a, b in zip(self, before, strict=True)))

    def __repr__(self) -> str:
        return ", ".join(times(count, name.removesuffix("s")) for name, count in self._asdict().items())


def times(n: int, what: str) -> str:
    """`1 compile`, `2 compiles`."""
    return f"{n} {what}" + "s" * (n != 1)


def counters() -> Counters:
    """The counts since this process began; waits until this thread's device has finished what it was given."""
    from torch_xla import _XLAC
    from torch_xla.debug import metrics

    if _XLAC._xla_runtime_is_initialized():  # a run is counted when it ends, which `sync` does not wait for
        mine = _XLAC._xla_real_devices([_XLAC._xla_get_default_device()])
        _XLAC._xla_wait_device_ops([] if mine == ["SPMD:0"] else mine)  # [] is all of them

    def count(name: str) -> int:
        return (metrics.metric_data(name) or (0,))[0]

    executions = count("ExecuteTime") + count("ExecuteReplicatedTime")  # on one device; on all at once, with SPMD
    return Counters(count("CompileTime"), executions, count("TransferToDeviceTime"), count("TransferFromDeviceTime"))
