"""What this machine has (`discover`), and one device of it (`pick`). torch is imported late."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import tpus
from .errors import CourseError, DeviceError
from .limits import text_of, usable_cores, usable_memory
from .style import FONT, WIDTH, plural

if TYPE_CHECKING:
    import torch

MARKS = {"native": "●", "virtual": "◐", "not here": "○"}
OLDEST_TORCH = "2.9.0a0"


class Device(NamedTuple):
    """One device torch can use; `memory` in bytes."""

    name: str
    kind: str
    title: str
    memory: int


@dataclass(frozen=True)
class Machine:
    """What can be used here, memory in bytes; its text is a card."""

    about: str  # "Linux x86_64 · Python 3.12.1 · torch 2.13.0"
    cores: float
    cores_total: int
    memory: int
    memory_available: int  # of `memory`, now
    devices: tuple[Device, ...]  # the CPU first
    backend: str  # of torch.distributed, where ranks have an accelerator each; else it is gloo
    native_counts: Sequence[int]  # numbers of ranks that can have an accelerator each
    xla: str | None  # "torch_xla 2.9.0"
    tpu: tpus.Chips | None  # of the host, whether or not this kernel can use them
    notes: tuple[str, ...]  # why something that seems to be there cannot be used

    @property
    def accelerators(self) -> tuple[Device, ...]:
        return self.devices[1:]

    @property
    def ranks(self) -> int:
        """How many ranks `launch` starts unless told."""
        return default_ranks(self.native_counts)

    @property
    def _kind(self) -> str:
        """What ranks can have one of: "GPU" or "TPU"."""
        return "TPU" if self.accelerators[0].kind == "tpu" else "GPU"

    def runs(self, ranks: int) -> str:
        """How they run here: "4 ranks share 2 CPU cores; gloo", "4 ranks on 4 GPUs; nccl"."""
        who = plural(ranks, "rank")
        if ranks in self.native_counts:
            return f"{who} on {plural(ranks, self._kind)}; {self.backend}"

        have = "on" if ranks <= max(1, self.cores) else "share"
        count = len(self.accelerators)
        why = ""
        if count and not self.native_counts:
            why = " (MPS has no collectives between processes)"
        elif count and ranks > count:
            why = f" ({plural(count, self._kind)}: too few)"
        elif count:
            why = f" ({ranks} of {count} TPUs are no slice)"
        return f"{who} {have} {plural(self.cores, 'CPU core')}{why}; gloo"

    def how(self, ranks: int) -> str:
        """How native that is: "native" where each has an accelerator, else "virtual"."""
        return "native" if ranks in self.native_counts else "virtual"

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The card: what, what of it is here, more on that, and how (a key of MARKS)."""
        cores = plural(self.cores, "core")
        if self.cores < self.cores_total:
            cores += f" of {self.cores_total}"
        rows = [
            ("CPU", cores, self.devices[0].title, "native"),
            ("memory", _gib(self.memory), f"{_gib(self.memory_available)} free now", "native"),
        ]

        gpus = [device for device in self.accelerators if device.kind != "tpu"]
        for (title, memory), alike in groupby(gpus, lambda gpu: (gpu.title, gpu.memory)):
            names = [device.name for device in alike]
            here = f"{len(names)} \N{MULTIPLICATION SIGN} {title}"
            rows.append(("GPU", here, f"{', '.join(names)}: {_gib(memory)} each", "native"))
        if not self.accelerators:
            meta = "the meta device stands in as a second device"
            rows.append(("GPU", "none that torch can use", meta, "not here"))

        rows.append(("TPU", *self._tpu_row()))
        processes = "real processes"
        how = self.how(self.ranks)
        if how == "virtual" and self.ranks > self.cores:
            processes += " that take turns on the cores"
        rows.append(("ranks", self.runs(self.ranks), processes, how))
        return rows

    def _tpu_row(self) -> tuple[str, str, str]:
        chips = str(self.tpu) if self.tpu else "none"
        if self.accelerators and self.accelerators[0].kind == "tpu":
            return chips, tpus.installed("torch_tpu") or "", "native"
        if self.xla and self.tpu:
            return chips, self.xla, "native"
        if self.xla:
            return "virtual cores of XLA's CPU client", self.xla, "virtual"
        if self.tpu:
            return chips, "this kernel has no torch_tpu: docs/install.md", "not here"
        return chips, "torch_xla is not installed in this kernel", "not here"

    def __repr__(self) -> str:
        lines = [f"This machine: {self.about}"]
        for what, here, more, how in self.rows():
            lines.append(f"  {what:<9}{MARKS[how]} {how:<11}{here} · {more}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        # Inline styles survive where a notebook is not trusted, and touch nothing else on the page.
        cell = "text-align:left;border-top:1px solid rgba(128,128,128,.3);padding:4px 14px 4px 0"
        rows = ""
        for what, here, more, how in self.rows():
            rows += (
                f'<tr style="background:none"><td style="{cell}">{what}</td>'
                f'<td style="{cell};white-space:nowrap">{MARKS[how]} {how}</td>'
                f'<td style="{cell};width:100%"><b>{escape(here)}</b> · {escape(more)}</td></tr>'
            )
        notes = "".join(f"<div>Note: {escape(note)}</div>" for note in self.notes)
        table = "border-collapse:collapse;font-size:inherit;color:inherit"
        return (
            f'<div style="font:13px/1.4 {FONT};max-width:{WIDTH}px">'
            f"<b>This machine</b>&ensp;{escape(self.about)}"
            f'<table style="{table}">{rows}</table>{notes}</div>'
        )


def discover() -> Machine:
    """Ask this machine what it has.

    Nothing is allocated on a device, and a broken driver becomes a note.

    Raises:
        CourseError: torch is missing, or too old.
    """
    check_torch()
    import torch

    found: list[Device] = []
    notes: list[str] = []
    try:
        found = _describe_all()
    except Exception as error:  # a driver may fail in any way, and the CPU still works
        notes.append(f"the accelerator cannot be used: {error}".splitlines()[0])
    if Path("/dev/nvidiactl").exists() and not found:
        notes.append(
            "an NVIDIA driver is here, but torch finds no GPU: a CPU build, or "
            "CUDA_VISIBLE_DEVICES hides it?"
        )

    system = f"{platform.system()} {platform.machine()}".replace("Darwin", "macOS")
    model = re.search(r"^model name\s*:\s*(.+)$", text_of(Path("/proc/cpuinfo")), re.MULTILINE)
    cpu = model[1] if model else platform.processor() or platform.machine()
    memory, free = usable_memory()
    kind = found[0].kind if found else "cpu"
    return Machine(
        about=f"{system} · Python {platform.python_version()} · torch {torch.__version__}",
        cores=usable_cores(),
        cores_total=os.cpu_count() or 1,
        memory=memory,
        memory_available=free,
        devices=(Device("cpu", "cpu", cpu, memory), *found),
        backend=default_backend(kind),
        native_counts=rank_accelerator()[1] if found else (),
        xla=tpus.installed("torch_xla"),
        tpu=tpus.chips(),
        notes=tuple(notes),
    )


def pick(want: str | int | torch.device | None = None, *, ranks: int | None = None) -> torch.device:
    """The device asked for, or the best one here; in a rank, the rank's own.

    Args:
        want: its name, or the index of an accelerator.
        ranks: asks for the kind of device that `launch(…, ranks=ranks)` runs on, for what is
            compared with those ranks.

    Raises:
        DeviceError: it is not there; the message names the devices that are.
    """
    import torch

    forced = os.environ.get("COURSE_DEVICE")  # of `launch` in a rank, of `xla.launch` in a core
    if ranks is not None:
        return _device_of_ranks(ranks, forced)
    if want is None and forced == "xla":
        import torch_xla

        return torch_xla.device()

    kind, count = _accelerator()
    if kind == "tpu":
        count = 1  # the one that this process has, or would have
    here = ["cpu", *(f"{kind}:{i}" for i in range(count))]
    if want is None:
        want = forced or _of_this_process(kind, count)
    name = _with_index(want, kind)
    if name not in (*here, "meta"):
        hint = ""
        if name.isalpha():
            hint = ' torch calls NVIDIA and AMD GPUs "cuda", Apple\'s "mps", Intel\'s "xpu".'
        raise DeviceError(
            f'"{want}" is no device of this machine. It has {", ".join(here)}: ask for one of '
            f"them, or call pick() for the best.{hint}"
        )
    if name == "tpu:0":
        tpus.load()
    return torch.device(name)


def _device_of_ranks(ranks: int, forced: str | None) -> torch.device:
    """The kind of device that `launch(…, ranks=ranks)` runs on."""
    import torch

    kind, native_counts = rank_accelerator()
    if not forced:
        forced = kind if kind and ranks in native_counts else "cpu"
    if forced == "tpu":
        tpus.name_device()
    return torch.device(forced)


def _with_index(want: object, kind: str | None) -> str:
    """`cuda:1` for 1, "1" and, where it is the current one, "cuda"; any other name as it is."""
    import torch

    name = str(want).replace("cpu:0", "cpu")
    if name == kind:
        return "tpu:0" if kind == "tpu" else f"{kind}:{torch.accelerator.current_device_index()}"
    return f"{kind}:{name}" if kind and name.isdecimal() else name


def _of_this_process(kind: str | None, count: int) -> str:
    """The accelerator of this rank, if there is one for each rank of this machine; else the CPU."""
    if kind is None or count < int(os.environ.get("LOCAL_WORLD_SIZE", 1)):
        return "cpu"
    return os.environ.get("LOCAL_RANK", kind)


def rank_accelerator() -> tuple[str | None, Sequence[int]]:
    """An accelerator, and the numbers of ranks that can have one each; (None, ()) without any."""
    kind, count = _accelerator()
    if kind == "tpu":
        return kind, [*tpus.slices()]
    if kind is None or kind == "mps":  # which has no collectives between processes
        return None, ()
    return kind, range(1, count + 1)


def default_ranks(native_counts: Sequence[int]) -> int:
    """As many, 2 to 8, as can have an accelerator each; else 4, on the CPU."""
    most = max((ranks for ranks in native_counts if ranks <= 8), default=1)
    return most if most > 1 else 4


def default_backend(kind: str) -> str:
    """That of torch.distributed for this kind of device."""
    import torch.distributed as dist

    if kind == "tpu":  # which torch knows of only where TorchTPU is loaded
        return "tpu_dist"
    return dist.Backend.default_device_backend_map.get(kind, "gloo")


def check_torch() -> None:
    """Raise a CourseError where torch is missing or older than what ranks need."""
    try:
        import torch

        found = torch.__version__
        if found >= OLDEST_TORCH:
            return
    except ModuleNotFoundError:
        found = "none"
    raise CourseError(
        f"PyTorch 2.9 or newer is needed, and {sys.executable} has {found}: install it there "
        "(python -m pip install -U torch), and restart the kernel."
    )


def _accelerator() -> tuple[str | None, int]:
    """The kind torch computes on besides the CPU, and how many are here, else (None, 0)."""
    check_torch()
    import torch

    slices = tpus.slices()
    if slices:  # torch is not asked, which might load TorchTPU
        return "tpu", max(slices)
    here = torch.accelerator.current_accelerator(check_available=True)
    return (here.type, torch.accelerator.device_count()) if here else (None, 0)


def _describe_all() -> list[Device]:
    import torch

    kind, count = _accelerator()
    if kind is None:
        return []
    if kind == "tpu":  # of which nothing more is known before it is opened
        return [Device(f"tpu:{i}", kind, "TPU", 0) for i in range(count)]
    if kind == "mps":
        name, memory = torch.backends.mps.get_name(), torch.mps.recommended_max_memory()
        return [Device("mps:0", kind, name, memory)]
    about = [torch.get_device_module(kind).get_device_properties(i) for i in range(count)]
    return [Device(f"{kind}:{i}", kind, one.name, one.total_memory) for i, one in enumerate(about)]


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
