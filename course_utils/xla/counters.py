"""What torch_xla's own counters say of this process: programs compiled and run, tensors copied. Imports no torch."""

from __future__ import annotations

import sys
from dataclasses import astuple, dataclass

# How torch_xla 2.9.0 times a run: on one device, and on all of them at once (SPMD).
_EXECUTE = ("ExecuteTime", "ExecuteReplicatedTime")


@dataclass(frozen=True, repr=False)
class Counters:
    """How often this process compiled a program, ran one, and copied tensors to and from the device.

    Two of them can be subtracted: `xla.counters() - before` is what happened in between.
    """

    compiles: int = 0
    compile_seconds: float = 0.0
    executions: int = 0
    uploads: int = 0
    downloads: int = 0

    def __sub__(self, other: Counters) -> Counters:
        if not isinstance(other, Counters):
            return NotImplemented
        return Counters(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __repr__(self) -> str:
        counts = [times(self.compiles, "compile"), times(self.executions, "execution"),
                  times(self.uploads, "upload"), times(self.downloads, "download")]
        if self.compiles:
            counts[0] += f" ({self.compile_seconds:.2f} s)"
        return ", ".join(counts)


def times(n: int, what: str) -> str:
    """`1 compile`, `2 compiles`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def counters() -> Counters:
    """The counts since this process began, from `torch_xla.debug.metrics`.

    Waits until this thread's device has finished what it was given; starts nothing, not even the runtime.
    """
    if "torch_xla" not in sys.modules:
        return Counters()
    from torch_xla import _XLAC
    from torch_xla.debug import metrics

    if _XLAC._xla_runtime_is_initialized():  # a run is counted when it ends, which `sync` does not wait for
        mine = _XLAC._xla_real_devices([_XLAC._xla_get_default_device()])
        _XLAC._xla_wait_device_ops([] if mine == ["SPMD:0"] else mine)  # [] is all of them

    def timed(name: str) -> tuple[int, float]:
        found = metrics.metric_data(name)
        return (found[0], found[1] / 1e9) if found else (0, 0.0)  # nanoseconds

    compiles, seconds = timed("CompileTime")
    return Counters(
        compiles=compiles,
        compile_seconds=seconds,
        executions=sum(timed(name)[0] for name in _EXECUTE),
        uploads=timed("TransferToDeviceTime")[0],
        downloads=timed("TransferFromDeviceTime")[0],
    )
