"""Run a function of a notebook cell on a TPU's cores, or on virtual ones of XLA's CPU client.

What a real TPU needs was written from torch_xla's sources; nobody has run the course on one yet.
"""

import os
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .. import tpus
from ..errors import CourseError
from ..limits import usable_cores
from ..pictures.live import LivePlot
from ..ranks import state
from ..ranks.call import checked, whole
from ..ranks.launcher import pack_call
from ..ranks.run import Run
from ..ranks.supervisor import Supervisor
from ..ranks.wire import Task
from . import core

VIRTUAL_CORES = 8  # as many as a v5e-8, v6e-8 or v3-8 has
MOST_CORES = 64
# Kaggle's images set these for one process; with a process a chip, the TPU refuses to start
# (pytorch-lightning#20244).
PRESET = ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID")


def setup(device: str | None = None) -> None:
    """Choose the TPU where there is one, else XLA's CPU client, and print which.

    Call it before `import torch_xla`. `device="CPU"` gives virtual cores beside a TPU, for example
    beside one with a single core.

    Raises:
        CourseError: this kernel has no torch_xla; the message says what to do.
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
        where = "XLA compiles for this machine's CPU"
        if not tpus.chips():
            where = f"no TPU here, so {where}"
    print(f"{installed}: {where}.")


@checked
def launch(
    function: Callable,
    /,
    *args: Any,
    cores: int | None = None,
    spmd: bool = False,
    live: LivePlot | None = None,
    time_limit: float | None = 300.0,
    show: bool = True,
    **kwargs: Any,
) -> Run:
    """Run `function(*args, **kwargs)` on every core and wait for all of them.

    Inside, it is ordinary torch_xla: `torch_xla.device()` is the core's own, `xr.global_ordinal()`
    its number. Virtual cores are threads of one fresh process, each with a copy of the function and
    its arguments; they share the environment, the folder and the random generators of Python, NumPy
    and torch: seed one of your own. XLA itself ends them when one is more than 10 s late at a
    collective, and an interrupt ends them at once, without their `finally`.

    Args:
        cores: how many; on a TPU all it has, elsewhere 8 virtual ones unless told otherwise.
        spmd: call the function once, with `xr.use_spmd()` on: every core is a device of one
            program.

    The rest, what is returned (tensors on the CPU, one result with `spmd`) and the errors are those
    of `launch`.
    """
    started = time.perf_counter()
    _versions()
    real = _choose_device() == "TPU"
    there = _tpu_cores() if real else VIRTUAL_CORES
    count = there if cores is None else whole(cores)
    possible = [there] if real else range(1, MOST_CORES + 1)
    if count not in possible:
        raise CourseError(
            f"cores={cores!r}: there can be 1 to {MOST_CORES} virtual cores, or all of a TPU: "
            "leave cores out. For virtual ones beside a TPU restart the kernel and call "
            'xla.setup(device="CPU").'
        )

    env = {"COURSE_DEVICE": "xla"}
    if not real:
        env |= _virtual(count)
    parcel, file = pack_call(function, args, kwargs)
    task = Task(
        call=parcel,
        state=state.read(env),
        ranks=count,
        device="xla",
        backend=core.SPMD if spmd else core.REPLICAS,
        threads=state.threads(int(usable_cores())),
        timeout=None,
        started=started,
    )

    where = "a TPU" if real else "XLA's CPU client"
    if spmd:
        run = Run(1, f"{count} devices of {where}", task.backend, unit="program")
    else:
        run = Run(count, where, task.backend, unit="core")
    everyone = [*range(run.ranks)]
    supervisor = Supervisor(run, core.main, [everyone], live=live, show=show)
    return supervisor.supervise(task, file, time_limit)


def tolerance(fine: float = 1e-5) -> float:
    """How far from the CPU's a result may lie: `fine`, or on a TPU (bfloat16) 1000 times that."""
    return fine if _choose_device() == "CPU" else 1000 * fine


def _versions() -> str:
    """What is installed; a CourseError where torch_xla is not."""
    try:
        return f"torch_xla {version('torch_xla')}, torch {version('torch')}"
    except PackageNotFoundError:
        raise CourseError(
            "this kernel has no torch_xla: `make lab` builds it behind JupyterLab, on Linux x86-64 "
            "with Python 3.11 to 3.13, in some minutes. When it is ready, choose Kernel, Change "
            "Kernel…, PyTorch/XLA, and run again. On a TPU (Colab, Kaggle, a VM): %pip install "
            "torch==2.9.0 'torch_xla[tpu]==2.9.0', then restart the kernel."
        ) from None


def _choose_device() -> str:
    """TPU or CPU; torch_xla is told, too, which would print a line about it."""
    device = os.environ.setdefault("PJRT_DEVICE", "TPU" if tpus.chips() else "CPU")
    if device == "TPU":
        for name in PRESET:
            os.environ.pop(name, None)
    return device


def _tpu_cores() -> int:
    """How many devices this host's TPU has; asks without taking it."""
    from torch_xla._internal import tpu

    return tpu.num_available_devices()


def _virtual(cores: int) -> dict[str, str]:
    """Settings for `cores` devices of XLA's CPU client, which it reads when its process starts."""
    return {
        "CPU_NUM_DEVICES": str(cores),
        # A program runs where it is started, so that a core's programs keep their order.
        "PJRT_CPU_ASYNC_CLIENT": "0",
        # Each core's program needs a thread, or a collective never meets.
        "XLA_THREAD_POOL_SIZE": str(2 * cores),
        "NPROC": str(2 * cores),
        "TF_CPP_MIN_LOG_LEVEL": "2",  # only errors, as that a core is late
        # Nothing is optimized by LLVM, since a program runs a few times and mostly compiles here.
        "XLA_FLAGS": f"--xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')}",
    }
