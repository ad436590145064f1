"""Run a function from a notebook cell on several ranks: real processes with a real process group."""

from __future__ import annotations

import linecache
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import CourseError, DeviceError
from ..machine import default_ranks, ranks_accelerator, usable_cores
from ..pictures.live import LivePlot
from .crew import Crew
from .report import Task, current, dumps
from .run import Run

if TYPE_CHECKING:
    import torch

MOST_RANKS = 64  # each takes several descriptors, and many shells allow a process 1,024


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

    Inside, it is ordinary `torch.distributed`: the environment of `torchrun`, the process group initialised,
    `pick()` the rank's device. The same function runs unchanged under `torchrun`.

    Args:
        function: any function, closure or class, defined in a cell or a module; it travels by value.
        ranks: how many processes; by default `discover().ranks`.
        device: "cpu", "cuda", "xpu", or `pick(ranks=…)`, for a baseline on the same kind of device as other ranks;
            by default the accelerators where each rank gets its own, else the CPU.
        live: a `LivePlot` to draw what ranks `report()` while they run.
        time_limit: seconds until everything is ended and the ranks that did not finish are named; None: no limit.
        show: print what ranks print, each line with its rank.
        init_group: False leaves `torch.distributed.init_process_group()` to the function.

    Returns:
        A `Run`: results, metrics, output and timeline.

    Raises:
        CourseError: nothing was started; the message says what to change.
        RankError: a rank raised, died or never finished; all others were ended.
    """
    import torch.distributed as dist

    check_call(function)
    ranks, kind = place(ranks, device)
    backend = dist.get_default_backend_for_device(kind) if init_group else None
    # The ranks' meeting point is in this process, on a socket bound to loopback; torch's own listens everywhere.
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    store = dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    timeout = (
        None if time_limit is None else time_limit + 60
    )  # the launch's limit speaks first: it knows all ranks
    env = _environment(ranks, kind) | {"MASTER_PORT": str(store.port)}
    task = make_task(
        (function, args, kwargs),
        env,
        device=kind,
        backend=backend,
        timeout=timeout,
        threads=max(1, int(usable_cores() // ranks)),
    )
    run = Run(ranks, kind, backend, [None] * ranks, name=getattr(function, "__name__", ""))
    return Crew(run, live=live, show=show).work(task, time_limit)


def check_call(function: Callable) -> None:
    """What every launch checks, whatever it runs on."""
    if sys.platform == "win32":
        raise CourseError(
            "launch needs Linux or macOS. On Windows, open the course in WSL2: the README says how."
        )
    if current() is not None or "TORCHELASTIC_RUN_ID" in os.environ:
        raise CourseError(
            "launch was called inside a rank, of another launch or of torchrun, and ranks cannot start "
            "ranks: call launch in the notebook, and the function itself in the rank."
        )
    if not callable(function):
        raise CourseError(
            f"launch needs a function, and got {function!r:.60}. Give the function itself, and then what "
            "it is called with: launch(train, 10), not launch(train(10))."
        )


def place(ranks: int | None, device: str | torch.device | None) -> tuple[int, str]:
    """How many ranks, and the kind of device that they run on: accelerators where each gets its own, else the CPU."""
    kind, count = ranks_accelerator()
    ranks = default_ranks(count) if ranks is None else ranks
    if not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise CourseError(
            f"ranks={ranks!r}: give a whole number from 1 to {MOST_RANKS}, for example ranks=4"
        )
    if device is None:
        return ranks, kind if kind and count >= ranks else "cpu"
    if str(device) == "cpu" or (str(device) == kind and ranks <= count):
        return ranks, str(device)
    others = f', or on "{kind}" if they are at most {count}, one device each' if kind else ""
    raise DeviceError(f'device="{device}": {ranks} ranks run on "cpu" here{others}.')


def make_task(call: tuple[Callable, tuple, dict], env: dict[str, str], **more: Any) -> Task:
    """What ranks or cores need for this call: (function, args, kwargs)."""
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        raise CourseError(
            "the folder that this notebook works in is gone (deleted or renamed), and ranks start there: "
            "os.chdir(…) to one that exists, or open the notebook from its new place"
        ) from None
    refusal = (
        "the function, or something that it uses, cannot be sent to the ranks (create it inside the function, "
        "or pass what it is made from)"
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


def _environment(ranks: int, device: str) -> dict[str, str]:
    """What `torchrun` would set, but for the ranks' own numbers and the store's port."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    env = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the notebook holds the store; no rank opens one
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,  # nothing listens beyond this machine
        "COURSE_DEVICE": device,  # what `pick()` answers in a rank
    }
    if device == "cpu":
        # A function that asks torch for "the accelerator" must get the CPU here, in every rank.
        env |= {"CUDA_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": ""}
    return env
