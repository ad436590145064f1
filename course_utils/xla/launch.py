"""Run a function from a notebook cell on a TPU's cores: the real ones, or as many virtual ones on XLA's CPU client.

Importing this imports neither torch nor torch_xla. What happens inside the cores is `core.py`; what makes
several of them work on a CPU is `replicas.py`.
"""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import CourseError
from ..machine import tpu_chips, usable_cores
from ..pictures.live import LivePlot
from ..ranks.launch import check_call, make_task, name_of
from ..ranks.run import Run
from . import core, tpu
from .process import Cores

VIRTUAL_CORES = 8  # as many as a v5e-8, v6e-8 or v3-8 has
MOST_CORES = 64
TRIED = "2.9"  # the torch_xla that the course was run with
ROUGHER = 1000  # a TPU rounds the factors of float32 products to bfloat16 unless told otherwise


def setup(device: str | None = None) -> None:
    """Make this notebook's kernel ready for torch_xla; call it before `import torch_xla`, and after every restart.

    It chooses the TPU where there is one, else XLA's CPU client, and prints which and the versions.

    Args:
        device: "CPU" for virtual cores although there is a TPU, for example one with a single core.

    Raises:
        CourseError: this kernel has no torch_xla, or one that does not fit its torch; or the TPU is not to be had.
            The message says what to do.
    """
    installed = _versions()
    if device is not None:
        os.environ["PJRT_DEVICE"] = device
    device = _choose_device()
    where = "the TPU" if device == "TPU" else "XLA compiles for this machine's CPU"
    if device == "TPU":
        tpu.forget_presets()
        count = tpu.cores()
        where += f", {count} core{'s' * (count != 1)}"
        if count == 1:
            where += ' (notebooks about several: restart the kernel and call xla.setup(device="CPU"))'
    elif not tpu_chips():
        where = "no TPU here, so " + where
    print(f"torch_xla {installed['torch_xla']}, torch {installed['torch']}: {where}.")
    if not installed["torch_xla"].startswith(TRIED):
        print(f"The course was tried with torch_xla {TRIED}; with another, outputs may differ.")
    if device == "CPU":  # a TPU is left alone: `launch` needs it free
        import torch_xla

        torch_xla.device()
        core.start_autograd()


def launch(
    function: Callable,
    *args: Any,
    cores: int | None = None,
    spmd: bool = False,
    live: LivePlot | None = None,
    time_limit: float | None = 300.0,
    show: bool = True,
    **kwargs: Any,
) -> Run:
    """Run `function(*args, **kwargs)` on every core and wait for all of them.

    Inside, it is ordinary torch_xla: `torch_xla.device()` is the core's own, `xr.global_ordinal()` its number, and
    the collectives are XLA's. `report()` works by core. Virtual cores are threads of one fresh process, each with a
    copy of the function and its arguments; they share torch's random generator: seed a `torch.Generator` of your own.
    XLA itself ends virtual cores when one is more than 10 s late at a collective.

    Args:
        function: any function, closure or class, defined in a cell or a module; it travels by value.
        cores: how many; on a TPU all it has, elsewhere 8 virtual ones unless told otherwise.
        spmd: call the function once, with `xr.use_spmd()` on: every core is a device of one program.
        live: a `LivePlot` to draw what cores `report()` while they run.
        time_limit: seconds until everything is ended and the cores that did not finish are named; None: no limit.
        show: print what cores print, each line with its core.

    Returns:
        A `Run` with results, metrics and output by core (one of each with `spmd`). Tensors arrive on the
        CPU, both ways.

    Raises:
        CourseError: torch_xla is missing, or does not fit torch.
        CourseError: nothing was started; the message says what to change.
        RankError: a core raised, died or never finished; all others were ended.
    """
    check_call(function, live=live, time_limit=time_limit)
    if "ranks" in kwargs and "ranks" not in inspect.signature(function).parameters:
        raise CourseError(f"ranks={kwargs['ranks']!r}: xla.launch runs cores; write cores={kwargs['ranks']!r}")
    _versions()
    device = _choose_device()
    count = _check_cores(cores, device)
    task = make_task(
        (function, args, kwargs),
        {"COURSE_DEVICE": "xla"} | (_virtual(count) if device == "CPU" else {}),
        device="xla",
        backend=core.SPMD if spmd else core.REPLICAS,
        threads=max(1, int(usable_cores())),
        timeout=None,
    )
    where = "a TPU" if device == "TPU" else "XLA's CPU client"
    if spmd:
        run = Run(1, f"{count} devices of {where}", task.backend, [None], unit="program")
    else:
        run = Run(count, where, task.backend, [None] * count, unit="core")
    run.name = name_of(function)
    return Cores(run, live=live, show=show).work(task, time_limit)


def tolerance(fine: float = 1e-5) -> float:
    """How far what the cores compute may lie from the CPU's: `fine` on virtual cores, 1000 times that on a TPU.

    A TPU multiplies float32 matrices in bfloat16 by default. The factor covers what this does to the course's small
    networks, found by rounding the factors on a CPU.
    """
    return fine if _choose_device() == "CPU" else ROUGHER * fine


def _versions() -> dict[str, str]:
    """The installed pair; a CourseError when it is none. In .venv it says how far `make lab` is with .venv-xla."""
    found = {}
    pip = f"%pip install torch=={TRIED}.0 'torch_xla[tpu]=={TRIED}.0', then restart the kernel."
    for name in ("torch", "torch_xla"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            log = Path(sys.prefix) / "xla.log"  # what the build behind JupyterLab said
            said = log.read_text(errors="replace").split("\n") if log.exists() else []
            last = next((textwrap.shorten(line, 100) for line in reversed(said) if line.strip()), "")
            raise CourseError(
                f"this kernel has no {name}: `make lab` builds it behind JupyterLab, on Linux x86-64 with Python 3.11 "
                f"to 3.13, in some minutes{f' (now: {last})' if last else ''}. When it is ready, choose Kernel, Change "
                f"Kernel…, PyTorch/XLA, and run again. On a TPU (Colab, Kaggle, a VM): {pip}"
            ) from None
    if found["torch"].split(".")[:2] != found["torch_xla"].split(".")[:2]:
        raise CourseError(
            f"torch {found['torch']} and torch_xla {found['torch_xla']} are no pair: torch_xla is compiled against one "
            f"torch. Install torch=={found['torch_xla'].split('+')[0]} beside it, then restart the kernel."
        )
    return found


def _choose_device() -> str:
    """"TPU" or "CPU", also told to torch_xla, which would print a line about it."""
    device = os.environ.setdefault("PJRT_DEVICE", "TPU" if tpu_chips() else "CPU")
    if device not in ("TPU", "CPU"):
        raise CourseError(f'PJRT_DEVICE="{device}": the course runs torch_xla on "TPU" or "CPU": change or remove it')
    return device


def _check_cores(cores: object, device: str) -> int:
    if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int)):
        raise CourseError(f"cores={cores!r} ({type(cores).__name__}): give a whole number, for example cores=8")
    if device == "CPU":
        if cores is not None and not 1 <= cores <= MOST_CORES:
            raise CourseError(f"cores={cores}: there can be 1 to {MOST_CORES} virtual cores")
        return VIRTUAL_CORES if cores is None else cores
    there = tpu.cores()
    if cores not in (None, there):
        raise CourseError(
            f"cores={cores}: this TPU has {there}, and torch_xla starts them all: leave cores out. For virtual cores "
            'restart the kernel and call xla.setup(device="CPU").'
        )
    if (module := sys.modules.get("torch_xla")) is not None and module._XLAC._xla_runtime_is_initialized():
        raise CourseError(
            "this kernel already uses the TPU (a tensor was made on it, or its devices were listed), and the cores run "
            "in processes of their own: restart the kernel and call xla.launch first."
        )
    return there


def _virtual(cores: int) -> dict[str, str]:
    """The settings with which XLA's CPU client has `cores` devices; they are read when its process starts."""
    return {
        "CPU_NUM_DEVICES": str(cores),
        "PJRT_CPU_ASYNC_CLIENT": "0",  # a program runs where it is started, so that a core's programs keep their order
        # Every core's program needs a thread, or a collective never meets.
        "XLA_THREAD_POOL_SIZE": str(2 * cores),
        "NPROC": str(2 * cores),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",  # any that is free: the cores of one process share the store
        "TF_CPP_MIN_LOG_LEVEL": "2",  # only errors; `Cores` reads the one that says a core is late
    }
