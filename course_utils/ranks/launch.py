"""Run a function from a notebook cell on several ranks, and get results, metrics, output and errors back.

The ranks are real processes with a real process group; `rank.py` is what happens inside one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..pictures.live import LivePlot
from .arguments import check_call, check_ranks, folder, name_of
from .carry_out import carry_out, cells
from .payload import packed
from .placement import place
from .processes import Ranks
from .run import Run
from .session import Task

if TYPE_CHECKING:
    import torch


def launch(
    function: Callable,
    *args: Any,
    ranks: int | None = None,
    device: str | torch.device | None = None,
    backend: str | None = None,
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
        ranks: how many processes; by default one an accelerator where there are two or more, else 4.
        device: "cpu", "cuda", "xpu", or `pick(ranks=…)`, for a baseline on the same kind of device as other ranks;
            by default the accelerators where each rank gets its own, else the CPU.
        backend: any that torch has; by default the one of the device, and gloo where ranks share a CUDA GPU
            (gloo's collectives take its tensors, its send and recv do not).
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
    check_call(function, live=live, time_limit=time_limit)
    placement = place(check_ranks(ranks), device, backend, init_group=init_group)
    payload = packed(function, args, kwargs)
    store = _open_store()
    task = Task(
        payload=payload,
        cells=cells(),
        env=dict(os.environ) | placement.env | {"MASTER_PORT": str(store.port)},
        cwd=folder(),
        device=placement.device,
        backend=placement.backend,
        threads=placement.threads,
        # The limit of the launch is to speak first: it knows all ranks.
        timeout=None if time_limit is None else time_limit + 60,
        began=time.perf_counter(),
    )
    outcome = [None] * placement.ranks
    run = Run(placement.ranks, placement.device, placement.backend, outcome, name=name_of(function))
    return carry_out(run, Ranks(placement.ranks), task, live=live, time_limit=time_limit, show=show)


def _open_store() -> Any:
    """The ranks' meeting point, in this process; a socket bound to loopback, where torch's own listens everywhere."""
    import socket

    import torch.distributed as dist

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
