"""What this machine has (`discover`), and one of it: by name, by index, or the best (`pick`)."""

from __future__ import annotations

import os
import platform
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DeviceError
from . import probe
from .limits import ROOT, available_memory, usable_cores, usable_memory
from .machine import Machine
from .probe import Device

if TYPE_CHECKING:
    import torch

# Kaggle's images carry Colab's variables too, so Kaggle is asked first.
PLACES = {
    "Kaggle": ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_URL_BASE"),
    "Colab": ("COLAB_RELEASE_TAG", "COLAB_GPU", "COLAB_BACKEND_VERSION"),
    "Binder": ("BINDER_LAUNCH_HOST", "BINDER_REPO_URL", "BINDER_SERVICE_HOST"),
    "Codespaces": ("CODESPACES",),
}


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
    memory, xla = usable_memory(root=root), probe.xla_package()
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
        devices=(Device("cpu", "cpu", probe.cpu_title(root), memory, current=not found), *found),
        backends=probe.backends({device.kind for device in found}, xla),
        library=probe.library(found[0].kind if found else "cpu"),
        xla=xla,
        tpu=probe.tpu_chips(root),
        notes=tuple(dict.fromkeys(notes)),
    )


def pick(want: str | int | torch.device | None = None, *, ranks: int | None = None) -> torch.device:
    """The device asked for, or the best one here; inside a rank, the rank's own.

    None: the accelerator where there is one, else the CPU. A rank whose machine has fewer accelerators than ranks
    computes on the CPU, as all its peers do. An index counts accelerators. `DeviceError` where there is no such device.

    ranks: the kind of device that `launch(…, ranks=ranks)` runs on, accelerators where each rank gets its own, else
    the CPU. What is compared with those ranks, a baseline in the notebook or on one rank, goes there, too.
    """
    import torch

    if ranks is not None:
        if want is not None:
            raise DeviceError(f"pick({want!r}, ranks={ranks!r}): ask for a device, or for that of so many ranks.")
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise DeviceError(f"pick(ranks={ranks!r}): give the number of ranks, a whole number from 1.")
        kind, count = ranks_accelerator()
        return torch.device(os.environ.get("COURSE_DEVICE") or (kind if kind and count >= ranks else "cpu"))
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


def ranks_accelerator() -> tuple[str | None, int]:
    """(kind, how many) of the accelerators that ranks can have one each of; (None, 0) where there are none."""
    import torch

    here = torch.accelerator.current_accelerator(check_available=True)
    if here is None or here.type == "mps":  # which has no collectives between processes
        return None, 0
    return here.type, torch.accelerator.device_count()


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
        return "is reached through PyTorch/XLA: `xla.setup` for one core, `xla.launch` for all of them."
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
        found = probe.accelerators(notes)
    notes += [str(warning.message).splitlines()[0] for warning in caught]
    return found
