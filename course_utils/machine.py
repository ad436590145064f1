"""What this machine has, its limits counted (`discover`), and one device of it (`pick`). torch is imported late."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from html import escape
from importlib.metadata import distributions
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from .errors import DeviceError
from .style import FONT, WIDTH

if TYPE_CHECKING:
    import torch

MARKS = {"native": "●", "virtual": "◐", "not here": "○"}
CGROUP = Path("/sys/fs/cgroup")  # where a container sees its own limits (version 2)
PCI = Path("/sys/bus/pci/devices")
# Google's TPUs by their device id on the PCI bus (as in jax's hardware_utils).
TPU_CHIPS = {
    "0x0027": "v2/v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "7x",
}


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
    backend: (
        str  # of torch.distributed, for ranks that have an accelerator each; on the CPU it is gloo
    )
    xla: str | None = None  # "torch_xla 2.9.0"
    tpu: str | None = None  # "TPU v5e, 8 chips"
    notes: tuple[str, ...] = ()  # why something that seems to be there cannot be used

    @property
    def accelerators(self) -> tuple[Device, ...]:
        return self.devices[1:]

    @property
    def ranks(self) -> int:
        """How many ranks `launch` starts unless told."""
        return default_ranks(self._gpus)

    @property
    def _gpus(self) -> int:  # that ranks can have one each of
        return sum(device.kind != "mps" for device in self.accelerators)

    def runs(self, ranks: int) -> str:
        """How `ranks` ranks run here: "4 ranks share 2 CPU cores; gloo", "4 ranks on 4 GPUs; nccl"."""
        gpus, who, why = self._gpus, plural(ranks, "rank"), ""
        if gpus >= ranks:
            return f"{who} on {plural(ranks, 'GPU')}; {self.backend}"
        if self.accelerators:
            why = (
                f" ({plural(gpus, 'GPU')}: too few)"
                if gpus
                else " (MPS has no collectives between processes)"
            )
        return f"{who} {'on' if ranks <= max(1, self.cores) else 'share'} {plural(self.cores, 'CPU core')}{why}; gloo"

    def how(self, ranks: int) -> str:
        """ "native" where each of `ranks` ranks has an accelerator or a core of its own, else "virtual"."""
        return "native" if ranks <= max(self._gpus, self.cores) else "virtual"

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The card: what, what of it is here, more on that, and how (a key of MARKS)."""
        cores = plural(self.cores, "core") + f" of {self.cores_total}" * (
            self.cores < self.cores_total
        )
        rows = [
            ("CPU", cores, self.devices[0].title, "native"),
            ("memory", _gib(self.memory), f"{_gib(self.memory_available)} free now", "native"),
        ]
        for (title, memory), alike in groupby(
            self.accelerators, lambda device: (device.title, device.memory)
        ):
            names = [device.name for device in alike]
            here = f"{len(names)} \N{MULTIPLICATION SIGN} {title}"
            rows.append(("GPU", here, f"{', '.join(names)}: {_gib(memory)} each", "native"))
        if not self.accelerators:
            rows.append(
                (
                    "GPU",
                    "none that torch can use",
                    "the meta device stands in as a second device",
                    "not here",
                )
            )
        tpu = self.tpu or ("virtual cores of XLA's CPU client" if self.xla else "none")
        xla = self.xla or "torch_xla is not installed in this kernel"
        rows.append(
            ("TPU", tpu, xla, ("native" if self.tpu else "virtual") if self.xla else "not here")
        )
        how = self.how(self.ranks)
        processes = "real processes" + " that take turns on the cores" * (how == "virtual")
        return [*rows, ("ranks", self.runs(self.ranks), processes, how)]

    def __repr__(self) -> str:
        rows = [
            f"  {what:<9}{MARKS[how]} {how:<11}{here} · {more}"
            for what, here, more, how in self.rows()
        ]
        return "\n".join(
            [f"This machine: {self.about}", *rows, *(f"  note: {note}" for note in self.notes)]
        )

    def _repr_html_(self) -> str:
        # Inline styles only: they survive where a notebook is not trusted, and touch nothing else on the page.
        cell = '<td style="text-align:left;border-top:1px solid rgba(128,128,128,.3);padding:4px 14px 4px 0'
        rows = "".join(
            f'<tr style="background:none">{cell}">{what}</td>{cell};white-space:nowrap">{MARKS[how]} {how}</td>'
            f'{cell};width:100%"><b>{escape(here)}</b> · {escape(more)}</td></tr>'
            for what, here, more, how in self.rows()
        )
        notes = "".join(f"<div>Note: {escape(note)}</div>" for note in self.notes)
        return (
            f'<div style="font:13px/1.4 {FONT};max-width:{WIDTH}px"><b>This machine</b>&ensp;{escape(self.about)}'
            f'<table style="border-collapse:collapse;font-size:inherit;color:inherit">{rows}</table>{notes}</div>'
        )


def discover() -> Machine:
    """Ask this machine what it has. Nothing is allocated on a device, and a broken driver becomes a note."""
    import torch

    found, notes = [], []
    try:
        found = _accelerators()
    except Exception as error:  # a driver may fail in any way, and the CPU still works
        notes.append(f"the accelerator cannot be used: {error}".splitlines()[0])
    if Path("/dev/nvidiactl").exists() and not found:
        notes.append(
            "an NVIDIA driver is here, but torch finds no GPU: a CPU build, or CUDA_VISIBLE_DEVICES hides it?"
        )
    system = f"{platform.system()} {platform.machine()}".replace("Darwin", "macOS")
    cpu = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    cpu = cpu[1] if cpu else platform.processor() or platform.machine()
    memory, free = usable_memory()
    return Machine(
        about=f"{system} · Python {platform.python_version()} · torch {torch.__version__}",
        cores=usable_cores(),
        cores_total=os.cpu_count() or 1,
        memory=memory,
        memory_available=free,
        devices=(Device("cpu", "cpu", cpu, memory), *found),
        backend=torch.distributed.Backend.default_device_backend_map.get(
            found[0].kind if found else "cpu", "gloo"
        ),
        # Found without importing it, which starts threads or takes the TPU.
        xla=next(
            (f"torch_xla {package.version}" for package in distributions(name="torch_xla")), None
        ),
        tpu=tpu_chips(),
        notes=tuple(notes),
    )


def pick(want: str | int | torch.device | None = None, *, ranks: int | None = None) -> torch.device:
    """The device asked for by name or, of accelerators, by index; or the best one here: in a rank, the rank's own.

    `ranks` asks for the kind of device that `launch(…, ranks=ranks)` runs on, for what is compared with those ranks.
    A device that is not there is a DeviceError, which names those that are.
    """
    import torch

    forced = os.environ.get(
        "COURSE_DEVICE"
    )  # `launch` sets it in every rank, `xla.launch` in every core
    if ranks is not None:
        kind, count = ranks_accelerator()
        return torch.device(forced or (kind if kind and count >= ranks else "cpu"))
    if want is None and forced == "xla":
        import torch_xla

        return torch_xla.device()
    kind, count = _accelerator()
    names = ["cpu", *(f"{kind}:{i}" for i in range(count))]
    if want is None:
        enough = count >= int(
            os.environ.get("LOCAL_WORLD_SIZE", 1)
        )  # for every rank of this machine
        want = forced or (os.environ.get("LOCAL_RANK", kind) if enough else "cpu")
    name = str(want)
    if name == kind:
        name = f"{kind}:{torch.accelerator.current_device_index()}"
    elif kind and name.isdecimal():
        name = f"{kind}:{name}"
    if name in (*names, "meta"):
        return torch.device(name)
    hint = (
        ' torch calls NVIDIA and AMD GPUs "cuda", Apple\'s "mps", Intel\'s "xpu".' * name.isalpha()
    )
    raise DeviceError(
        f'"{want}" is no device of this machine. It has {", ".join(names)}: ask for one of them, or call '
        f"pick() for the best.{hint}"
    )


def ranks_accelerator() -> tuple[str | None, int]:
    """(kind, how many) of the accelerators that ranks can have one each of; (None, 0) where there are none."""
    kind, count = _accelerator()
    return (None, 0) if kind == "mps" else (kind, count)  # MPS has no collectives between processes


def default_ranks(accelerators: int) -> int:
    """One on each of 2 to 8, else 4, on the CPU."""
    return min(accelerators, 8) if accelerators > 1 else 4


def usable_cores() -> float:
    """CPU cores this process may keep busy: those of its affinity mask, or less by its container's quota, as 1.5."""
    cores = float(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota, _, period = _text(CGROUP / "cpu.max").partition(" ")  # "150000 100000", or "max 100000"
    return min(cores, int(quota) / int(period)) if quota.isdigit() else cores


def usable_memory() -> tuple[int, int]:
    """Bytes that this process and its children may have together, its container's limit counted; and those now free."""
    here, limit = psutil.virtual_memory(), _text(CGROUP / "memory.max")
    if not limit.isdigit() or int(limit) >= here.total:
        return here.total, here.available
    # The kernel gives cached file pages back before it calls memory short.
    cached = re.search(r"^inactive_file (\d+)", _text(CGROUP / "memory.stat"), re.MULTILINE)
    used = int(_text(CGROUP / "memory.current") or 0) - int(cached[1] if cached else 0)
    return int(limit), min(here.available, max(0, int(limit) - used))


def tpu_chips() -> str | None:
    """The TPU on the PCI bus, "TPU v5e, 8 chips", or None."""
    google = [card for card in PCI.glob("*") if _text(card / "vendor") == "0x1ae0"]
    chips = [
        TPU_CHIPS[device] for card in google if (device := _text(card / "device")) in TPU_CHIPS
    ]
    return f"TPU {chips[0]}, {plural(len(chips), 'chip')}" if chips else None


def _accelerator() -> tuple[str | None, int]:
    """The kind torch computes on besides the CPU, and how many of it are here; (None, 0) where there are none."""
    import torch

    here = torch.accelerator.current_accelerator(check_available=True)
    return (here.type, torch.accelerator.device_count()) if here else (None, 0)


def _accelerators() -> list[Device]:
    import torch

    kind, count = _accelerator()
    if kind == "mps":
        return [
            Device("mps:0", kind, torch.backends.mps.get_name(), torch.mps.recommended_max_memory())
        ]
    about = [torch.get_device_module(kind).get_device_properties(i) for i in range(count)]
    return [Device(f"{kind}:{i}", kind, one.name, one.total_memory) for i, one in enumerate(about)]


def _text(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""


def plural(number: float, noun: str) -> str:
    """`1 core`, `1.5 cores`."""
    return f"{number:g} {noun}{'s' * (number != 1)}"


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
