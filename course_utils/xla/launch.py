"""Run a function from a notebook cell on a TPU's cores: the real ones, or as many virtual ones on XLA's CPU client.

What a real TPU needs was written from torch_xla's sources; nobody has run the course on one yet.
"""

import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..errors import CourseError
from ..machine import tpu_chips, usable_cores
from ..pictures.live import LivePlot
from ..ranks.crew import Crew
from ..ranks.launch import check_call, make_task
from ..ranks.run import Run
from . import core

VIRTUAL_CORES, MOST_CORES = 8, 64  # eight: as many as a v5e-8, v6e-8 or v3-8 has
# Kaggle's images set them for one process; with one a chip, the TPU refuses to start (pytorch-lightning#20244).
PRESET = ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID")


def setup(device: str | None = None) -> None:
    """Choose the TPU where there is one, else XLA's CPU client, and print which; call it before `import torch_xla`.

    `device="CPU"` gives virtual cores beside a TPU, for example one with a single core. A kernel without torch_xla is a
    CourseError, whose message says what to do.
    """
    installed = _versions()
    if device is not None:
        os.environ["PJRT_DEVICE"] = device
    if _choose_device() == "TPU":  # which is left alone: `launch` needs it free
        where = f"the TPU, {_tpu_cores()} cores"
    else:
        import torch_xla

        torch_xla.device()
        core.start_autograd()
        where = "no TPU here, so " * (not tpu_chips()) + "XLA compiles for this machine's CPU"
    print(f"{installed}: {where}.")


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

    Inside, it is ordinary torch_xla: `torch_xla.device()` is the core's own, `xr.global_ordinal()` its number. Virtual
    cores are threads of one fresh process, each with a copy of the function and its arguments; they share torch's
    random generator: seed one of your own. XLA itself ends them when one is more than 10 s late at a collective.

    Args:
        cores: how many; on a TPU all it has, elsewhere 8 virtual ones unless told otherwise.
        spmd: call the function once, with `xr.use_spmd()` on: every core is a device of one program.

    The rest, what is returned (tensors on the CPU, one result with `spmd`) and the errors are those of `launch`.
    """
    check_call(function)
    _versions()
    real = _choose_device() == "TPU"
    there = _tpu_cores() if real else VIRTUAL_CORES
    cores = there if cores is None else cores
    if cores not in ([there] if real else range(1, MOST_CORES + 1)):
        raise CourseError(
            f"cores={cores}: there can be 1 to {MOST_CORES} virtual cores, or all of a TPU: leave cores "
            'out. For virtual ones beside a TPU restart the kernel and call xla.setup(device="CPU").'
        )
    env = {"COURSE_DEVICE": "xla"} | ({} if real else _virtual(cores))
    task = make_task(
        (function, args, kwargs),
        env,
        device="xla",
        backend=core.SPMD if spmd else core.REPLICAS,
        threads=max(1, int(usable_cores())),
        timeout=None,
    )
    count, unit = (1, "program") if spmd else (cores, "core")
    where = f"{cores} devices of " * spmd + ("a TPU" if real else "XLA's CPU client")
    run = Run(
        count,
        where,
        task.backend,
        [None] * count,
        unit=unit,
        name=getattr(function, "__name__", ""),
    )
    return Cores(run, live=live, show=show).work(task, time_limit)


class Cores(Crew):
    """All cores of one launch, ranks that share a process; with SPMD one program that has them all."""

    main, together = staticmethod(core.main), True

    def who(self, rank: int) -> str:
        return "the SPMD program" if self.run.unit == "program" else super().who(rank)


def tolerance(fine: float = 1e-5) -> float:
    """How far from the CPU's a result may lie: `fine` on virtual cores; 1000 times that on a TPU (bfloat16)."""
    return fine if _choose_device() == "CPU" else 1000 * fine


def _versions() -> str:
    """What is installed; a CourseError where torch_xla is not."""
    try:
        return f"torch_xla {version('torch_xla')}, torch {version('torch')}"
    except PackageNotFoundError:
        raise CourseError(
            "this kernel has no torch_xla: `make lab` builds it behind JupyterLab, on Linux x86-64 with Python 3.11 to "
            "3.13, in some minutes. When it is ready, choose Kernel, Change Kernel…, PyTorch/XLA, and run again. On a "
            "TPU (Colab, Kaggle, a VM): %pip install torch==2.9.0 'torch_xla[tpu]==2.9.0', then restart the kernel."
        ) from None


def _choose_device() -> str:
    """ "TPU" or "CPU", also told to torch_xla, which would print a line about it."""
    device = os.environ.setdefault("PJRT_DEVICE", "TPU" if tpu_chips() else "CPU")
    for name in PRESET if device == "TPU" else ():
        os.environ.pop(name, None)
    return device


def _tpu_cores() -> int:
    """How many devices this host's TPU has; asks without taking it."""
    from torch_xla._internal import tpu

    return tpu.num_available_devices()


def _virtual(cores: int) -> dict[str, str]:
    """The settings with which XLA's CPU client has `cores` devices; they are read when its process starts."""
    return {
        "CPU_NUM_DEVICES": str(cores),
        "PJRT_CPU_ASYNC_CLIENT": "0",  # a program runs where it is started, so that a core's programs keep their order
        "XLA_THREAD_POOL_SIZE": str(
            2 * cores
        ),  # each core's program needs a thread, or a collective never meets
        "NPROC": str(2 * cores),
        "TF_CPP_MIN_LOG_LEVEL": "2",  # only errors, as that a core is late
    }
