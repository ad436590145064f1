"""What this machine has (`discover`), and one of it: by name, by index, or the best (`pick`)."""

from __future__ import annotations

import os
import platform
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import _probe
from ._limits import ROOT, available_memory, usable_cores, usable_memory
from ._probe import Device
from .errors import DeviceError

if TYPE_CHECKING:
    import torch

__all__ = ["Device", "Machine", "available_memory", "discover", "pick", "usable_cores", "usable_memory"]

# Kaggle's images carry Colab's variables too, so Kaggle is asked first.
PLACES = {
    "Kaggle": ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_URL_BASE"),
    "Colab": ("COLAB_RELEASE_TAG", "COLAB_GPU", "COLAB_BACKEND_VERSION"),
    "Binder": ("BINDER_LAUNCH_HOST", "BINDER_REPO_URL", "BINDER_SERVICE_HOST"),
    "Codespaces": ("CODESPACES",),
}
LIBRARY = {"cuda": "nccl", "xpu": "xccl"}  # the library of the collectives between ranks that have an accelerator each


@dataclass(frozen=True)
class Machine:
    """What can be used here, all limits counted, memory in bytes; shows itself as a card."""

    place: str  # "local", "Kaggle", "Colab", "Binder", "Codespaces"
    system: str
    python: str
    torch: str
    cores: float
    cores_total: int
    memory: int
    memory_total: int
    memory_available: int  # of `memory`, now
    devices: tuple[Device, ...]  # the CPU first
    backends: tuple[str, ...]  # of torch.distributed: those that can run here
    xla: str | None = None  # the installed way to XLA: "torch_xla 2.9.0", "torch_tpu 0.2"
    tpu: str | None = None  # the chips found: "TPU v5e, 8 chips"
    notes: tuple[str, ...] = ()  # why something that seems to be there cannot be used

    @property
    def accelerators(self) -> tuple[Device, ...]:
        return self.devices[1:]

    @property
    def accelerator(self) -> str | None:
        """The kind to compute on ("cuda", "mps", "xpu", "tpu"), or None where there is only the CPU."""
        if self.accelerators:
            return self.accelerators[0].kind
        return "tpu" if self.tpu and self.xla else None

    def runs(self, ranks: int) -> str:
        """How `ranks` ranks run here: "4 ranks share 2 CPU cores; gloo", "4 ranks on 4 GPUs; nccl"."""
        who, gpus = f"{ranks} rank{'s' * (ranks != 1)}", len(self.accelerators)
        if gpus >= ranks:
            library = LIBRARY.get(self.accelerators[0].kind, "gloo")
            return f"{who} on {ranks} GPU{'s' * (ranks != 1)}; {library if library in self.backends else 'gloo'}"
        cores = f"{self.cores:g} CPU core{'s' * (self.cores != 1)}"
        why = f" ({gpus} GPU{'s are' if gpus > 1 else ' is'} too few)" if gpus else ""
        return f"{who} {'on' if ranks <= max(1, self.cores) else 'share'} {cores}{why}; gloo"

    def __repr__(self) -> str:
        from ._card import text

        return text(self)

    def _repr_html_(self) -> str:
        from ._card import html

        return html(self)


def discover(*, root: Path = ROOT) -> Machine:
    """Ask this machine what it has. Nothing is allocated on a device, and a broken driver becomes a note.

    `root` is where /proc, /sys and /dev are looked for (the tests give a folder of their own).
    """
    import psutil
    import torch

    notes: list[str] = []
    found = _accelerators(notes)
    if (root / "dev/nvidiactl").exists() and not any(device.kind == "cuda" for device in found):
        if not torch.backends.cuda.is_built():
            notes.append(f"an NVIDIA driver is here, but torch {torch.__version__} was built without CUDA")
        elif os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
            notes.append("the environment variable CUDA_VISIBLE_DEVICES hides the NVIDIA GPUs")
        else:
            notes.append("an NVIDIA driver is here, but torch finds no GPU it can use")
    memory, xla = usable_memory(root=root), _probe.xla_package()
    return Machine(
        place=next((place for place, names in PLACES.items() if any(map(os.environ.get, names))), "local"),
        system=f"{platform.system()} {platform.machine()}".replace("x86_64", "x86-64").replace("Darwin", "macOS"),
        python=platform.python_version(),
        torch=str(torch.__version__),
        cores=usable_cores(root=root),
        cores_total=os.cpu_count() or 1,
        memory=memory,
        memory_total=psutil.virtual_memory().total,
        memory_available=available_memory(root=root),
        devices=(Device("cpu", "cpu", _probe.cpu_title(root), memory, current=not found), *found),
        backends=_probe.backends({device.kind for device in found}, xla),
        xla=xla,
        tpu=_probe.tpu_chips(root),
        notes=tuple(dict.fromkeys(notes)),
    )


def pick(want: str | int | torch.device | None = None) -> torch.device:
    """The device asked for, or the best one here; inside a rank, the rank's own.

    None: the accelerator where there is one, else the CPU. A rank whose machine has fewer accelerators than ranks
    computes on the CPU, as all its peers do. An index counts accelerators. `DeviceError` where there is no such device.
    """
    import torch

    if want is None:
        return _best()
    if isinstance(want, bool) or not isinstance(want, (str, int, torch.device)):
        raise DeviceError(
            f"{want!r} ({type(want).__name__}) names no device: give a name as \"cpu\" or \"cuda:0\", the index of an "
            f"accelerator, a torch.device, or nothing for the best one. {_here()}"
        )
    if isinstance(want, int):
        return _by_index(want)
    try:
        device = torch.device(want)
    except RuntimeError:
        raise DeviceError(f'"{want}" {_why_no_name(want)} {_here()}') from None
    if device.type == "meta" or (device.type == "cpu" and not device.index):
        return torch.device(device.type)
    return _present(device, want)


def _best() -> torch.device:
    import torch

    if forced := os.environ.get("COURSE_DEVICE"):  # `launch` sets it in every rank, `xla.launch` in every core
        if forced == "xla":
            import torch_xla

            return torch_xla.device()
        return pick(forced)
    found = _accelerators([])
    if not found:
        return torch.device("cpu")
    if "LOCAL_RANK" in os.environ:
        rank = int(os.environ["LOCAL_RANK"])
        peers = int(os.environ.get("LOCAL_WORLD_SIZE", rank + 1))
        return torch.device(found[0].kind, rank) if peers <= len(found) else torch.device("cpu")
    return torch.device(found[0].kind, next((i for i, device in enumerate(found) if device.current), 0))


def _by_index(index: int) -> torch.device:
    import torch

    found = _accelerators([])
    if 0 <= index < len(found):
        return torch.device(found[0].kind, index)
    if index == -1:
        why = "is what `Tensor.get_device()` says of a tensor on the CPU; to ask for the CPU, say \"cpu\"."
    elif index < 0:
        why = "is no index: accelerators are counted from 0."
    else:
        why = "is the index of an accelerator that is not there."
    raise DeviceError(f"{index} {why} {_here(found)}")


def _present(device: torch.device, want: object) -> torch.device:
    import torch

    notes: list[str] = []
    found = _accelerators(notes)
    same = [one for one in found if one.kind == device.type]
    index = device.index
    if index is None:
        index = next((i for i, one in enumerate(same) if one.current), 0)
    if index < len(same):
        return torch.device(device.type, index)
    if device.type == "xla" or (device.type == "tpu" and not same):
        raise DeviceError(f'"{want}" {_why_no_name("tpu")} {_here(found)}')
    why = f" ({'; '.join(notes)})" if notes else ""
    if device.type == "cuda" and not same and not torch.backends.cuda.is_built():
        why = f" (torch {torch.__version__} was built without CUDA)"
    raise DeviceError(f'"{want}" is not there{why}. {_here(found)}')


def _why_no_name(name: str) -> str:
    if name.partition(":")[0].lower() in ("tpu", "xla"):
        return "is reached through PyTorch/XLA: see notebook 12 for one core and `xla.launch` for all of them."
    if name.partition(":")[0].lower() in ("gpu", "nvidia", "amd", "rocm"):
        return 'is not a name torch knows: it calls NVIDIA and AMD GPUs "cuda", Apple\'s "mps" and Intel\'s "xpu".'
    if name.strip().lower() != name:
        return f'is not a name torch knows: names are lower-case and without spaces, as "{name.strip().lower()}".'
    return 'is not a name torch knows: names look like "cpu", "cuda", "cuda:0" or "mps".'


def _here(found: tuple[Device, ...] | None = None) -> str:
    """What there is instead, as the end of every message."""
    found = _accelerators([]) if found is None else found
    if not found:
        return "This machine has only the CPU: ask for \"cpu\", or call pick()."
    names = [device.name for device in found]
    names = names if len(names) <= 4 else [names[0], "…", names[-1]]
    return f"This machine has {', '.join(['cpu', *names])}: ask for one of them, or call pick() for the best."


def _accelerators(notes: list[str]) -> tuple[Device, ...]:
    with warnings.catch_warnings(record=True) as caught:  # torch warns about drivers it cannot use: make it a note
        warnings.simplefilter("always")
        found = _probe.accelerators(notes)
    notes += [str(warning.message).splitlines()[0] for warning in caught]
    return found
