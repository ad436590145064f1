"""The questions `discover` asks: each answers with what it finds, and nothing a driver does can make it fail."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from .limits import ROOT

# A TPU chip on the PCI bus: Google's vendor id, then the generation by device id (as in jax's hardware_utils).
TPU_VENDOR = "0x1ae0"
TPU_CHIPS = {"0x0027": "v2/v3", "0x005e": "v4", "0x0062": "v5p", "0x0063": "v5e", "0x006f": "v6e", "0x0076": "7x"}


@dataclass(frozen=True)
class Device:
    """One device torch can use; `memory` in bytes, `current`: what the bare name ("cuda") means now."""

    name: str
    kind: str
    title: str
    memory: int | None = None
    capability: tuple[int, int] | None = None
    current: bool = False


def accelerators(notes: list[str]) -> tuple[Device, ...]:
    """Every device of the kind torch computes on; why one cannot be used goes to `notes`."""
    import torch

    def failed(kind: str, error: Exception) -> None:
        lines = str(error).splitlines() or [""]
        notes.append(f"{kind} cannot be used: {type(error).__name__}: {lines[0]}")

    for kind, ask in ASK.items():
        try:
            if getattr(torch, kind).is_available() and (found := ask(kind)):
                return found
        except Exception as error:  # a driver may fail in any way, and the CPU still works
            failed(kind, error)
    try:  # whatever else plugs into torch: TorchTPU and others
        other = torch.accelerator.current_accelerator(check_available=True)
        if other is not None and other.type not in ASK:
            now, count = torch.accelerator.current_device_index(), torch.accelerator.device_count()
            title = other.type.upper()
            return tuple(Device(f"{other.type}:{i}", other.type, title, current=i == now) for i in range(count))
    except Exception as error:
        failed("the accelerator", error)
    return ()


def _many(kind: str) -> tuple[Device, ...]:
    import torch

    module = getattr(torch, kind)
    now, found = module.current_device(), []
    for index in range(module.device_count()):
        about = module.get_device_properties(index)
        capability = (about.major, about.minor) if kind == "cuda" else None
        found.append(Device(f"{kind}:{index}", kind, about.name, about.total_memory, capability, index == now))
    return tuple(found)


def _mps(kind: str) -> tuple[Device, ...]:
    import torch

    return (Device("mps", kind, f"{cpu_title(ROOT)} GPU", torch.mps.recommended_max_memory(), current=True),)


ASK = {"cuda": _many, "xpu": _many, "mps": _mps}


@cache
def cpu_title(root: Path) -> str:
    try:
        if platform.system() == "Darwin":
            ask = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(ask, capture_output=True, text=True, timeout=2).stdout.strip() or platform.machine()
        with (root / "proc/cpuinfo").open() as lines:
            title = next(line.partition(":")[2] for line in lines if line.startswith("model name"))
            return " ".join(title.split())
    except (OSError, StopIteration, subprocess.SubprocessError):
        return platform.processor() or platform.machine()


def xla_package() -> str | None:
    """The package that reaches XLA, found without importing it: both start threads or take the TPU when imported."""
    for name in ("torch_tpu", "torch_xla"):
        try:
            if find_spec(name):
                return f"{name} {version(name)}"
        except PackageNotFoundError:
            return name
        except (ImportError, ValueError):
            continue
    return None


def tpu_chips(root: Path) -> str | None:
    names = []
    for folder in root.glob("sys/bus/pci/devices/*"):
        try:
            if (folder / "vendor").read_text().strip() == TPU_VENDOR:
                names.append(TPU_CHIPS.get((folder / "device").read_text().strip()))
        except OSError:
            continue
    chips = [name for name in names if name]  # Google sells other PCI cards
    if not chips:
        chips = [""] * len([file for file in root.glob("dev/accel*") if re.fullmatch(r"accel\d+", file.name)])
    if chips:
        return f"TPU {chips[0]}".strip() + f", {len(chips)} chip{'s' * (len(chips) != 1)}"
    kind = os.environ.get("TPU_ACCELERATOR_TYPE")
    return f"TPU {kind}" if kind else None


def backends(kinds: set[str], xla: str | None) -> tuple[str, ...]:
    import torch.distributed as dist

    if not dist.is_available():
        return ()
    can = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available() and "cuda" in kinds,
        "xccl": getattr(dist, "is_xccl_available", lambda: False)() and "xpu" in kinds,
        "mpi": dist.is_mpi_available(),
        "xla": bool(xla and xla.startswith("torch_xla")),
    }
    return tuple(name for name, there in can.items() if there)


def library(kind: str) -> str:
    """The backend of the collectives between ranks that have a device of this kind each."""
    import torch.distributed as dist

    if not dist.is_available():
        return "none"
    try:
        name = dist.get_default_backend_for_device(kind)
    except ValueError:
        return "gloo"
    return name if dist.is_backend_available(name) else "gloo"
