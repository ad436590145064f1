"""Run a function of a notebook cell on several ranks: processes with a real process group."""

from __future__ import annotations

import linecache
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import tpus
from ..errors import CourseError, DeviceError
from ..machine import default_backend, default_ranks, ranks_accelerator, usable_cores
from ..pictures.live import LivePlot
from . import group
from .run import Run
from .supervisor import Supervisor, uninterrupted
from .wire import Task, current, dumps

if TYPE_CHECKING:
    import torch

MOST_RANKS = 64  # each takes several descriptors, and many shells allow a process 1,024
TAKEN = (
    "this kernel has opened the TPU, which one process at a time can have. Restart the kernel, and "
    "leave the TPU to the ranks: a tensor there opens it, and so does, once TorchTPU is loaded, a "
    "backward pass or a seed on the CPU. TORCH_DEVICE_BACKEND_AUTOLOAD=0 in the kernel's "
    "environment, which `make lab` sets, keeps torch from loading it unasked."
)


def launch(
    function: Callable,
    *args: Any,
    ranks: int | None = None,
    device: str | torch.device | None = None,
    live: LivePlot | None = None,
    time_limit: float | None = 300.0,
    show: bool = True,
    init_group: bool = True,
    **kwargs: Any,
) -> Run:
    """Run `function(*args, **kwargs)` on every rank and wait for all of them.

    Inside, it is ordinary `torch.distributed`: the environment of `torchrun`, the process group
    initialised, `pick()` the rank's device. The same function runs unchanged under `torchrun`.

    Args:
        function: any function, closure or class, defined in a cell or a module; it travels by
            value.
        ranks: how many processes; by default `discover().ranks`.
        device: "cpu", "cuda", "xpu", or `pick(ranks=…)`, for a baseline on the same kind of device
            as other ranks; by default the accelerators where each rank gets its own, else the CPU.
        live: a `LivePlot` to draw what ranks `report()` while they run.
        time_limit: seconds until everything is ended and the ranks that did not finish are named;
            None: no limit.
        show: print what ranks print, each line with its rank.
        init_group: False leaves `torch.distributed.init_process_group()` to the function.

    Returns:
        A `Run`: results, metrics, output and timeline.

    Raises:
        CourseError: nothing was started; the message says what to change.
        RankError: a rank raised, died or never finished; all others were ended.
    """
    with uninterrupted():  # until there are ranks for it to end
        check_call(function, live)
        ranks, kind = placement(ranks, device)
        backend = default_backend(kind) if init_group else None

        store = group.open_store()
        env = group.environment(ranks, kind, store.port)

        # A collective's own limit comes later than the launch's, whose error names all ranks.
        timeout = None if time_limit is None else time_limit + 60
        task = make_task(
            (function, args, kwargs),
            env,
            ranks=ranks,
            device=kind,
            backend=backend,
            timeout=timeout,
            threads=max(1, int(usable_cores() // ranks)),
        )
        run = Run(ranks, kind, backend, [None] * ranks)
    return Supervisor(run, live=live, show=show).supervise(task, time_limit)


def check_call(function: Callable, live: LivePlot | None) -> None:
    """What every launch checks, whatever it runs on."""
    if sys.platform == "win32":
        raise CourseError(
            "launch needs Linux or macOS. On Windows, open the course in WSL2: the README says how."
        )
    if current() is not None or "TORCHELASTIC_RUN_ID" in os.environ:
        raise CourseError(
            "launch was called inside a rank, of another launch or of torchrun, and ranks cannot "
            "start ranks: call launch in the notebook, and the function itself in the rank."
        )
    if not callable(function):
        raise CourseError(
            f"launch needs a function, and got {function!r:.60}. Give the function itself, and "
            "then what it is called with: launch(train, 10), not launch(train(10))."
        )
    if not isinstance(live, LivePlot | None):
        raise CourseError(f'live={live!r}: give a plot of what ranks report, as LivePlot("loss").')


def placement(ranks: int | None, device: str | torch.device | None) -> tuple[int, str]:
    """How many ranks, and their kind of device: accelerators where each gets one, else the CPU."""
    kind, numbers = ranks_accelerator()
    if ranks is None:
        ranks = default_ranks(numbers)
    if not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise CourseError(
            f"ranks={ranks!r}: give a whole number from 1 to {MOST_RANKS}, for example ranks=4"
        )

    taken = kind == "tpu" and tpus.is_open()
    if device is None:
        if not kind or ranks not in numbers:
            return ranks, "cpu"
        if taken:
            print(f"The ranks run on the CPU: {TAKEN}")
        return ranks, "cpu" if taken else kind
    if str(device) == kind and taken:
        raise DeviceError(f'device="{device}": {TAKEN}')
    if str(device) == "cpu" or (str(device) == kind and ranks in numbers):
        return ranks, str(device)
    others = ""
    if kind:
        possible = ", ".join(map(str, numbers))
        others = f', or on "{kind}", one device each, if they are {possible}'
    raise DeviceError(f'device="{device}": {ranks} ranks run on "cpu" here{others}.')


def make_task(call: tuple[Callable, tuple, dict], env: dict[str, str], **more: Any) -> Task:
    """What ranks or cores need for this call: (function, args, kwargs)."""
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        raise CourseError(
            "the folder that this notebook works in is gone (deleted or renamed), and ranks start "
            "there: os.chdir(…) to one that exists, or open the notebook from its new place"
        ) from None
    refusal = (
        "the function, or something that it uses, cannot be sent to the ranks (create it inside "
        "the function, or pass what it is made from)"
    )
    # The notebook's cells, without the hook by which IPython keeps them fresh.
    cells = {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None
    }
    return Task(
        began=time.perf_counter(),
        payload=dumps(call, refusal),
        cells=cells,
        env=dict(os.environ) | env,
        cwd=cwd,
        **more,
    )
