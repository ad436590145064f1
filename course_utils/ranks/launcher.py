"""Run a function of a notebook cell on several ranks: processes with a real process group."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import tpus
from ..errors import CourseError, DeviceError
from ..limits import usable_cores
from ..machine import default_backend, default_ranks, rank_accelerator
from ..pictures.live import LivePlot
from . import group, rank, state, values
from .call import checked, name_of, whole
from .processes import check_files
from .run import Run
from .supervisor import Supervisor, uninterrupted
from .wire import Task

if TYPE_CHECKING:
    import torch

MOST_RANKS = 64  # each takes several descriptors, and many shells allow a process 1,024
TPU_IN_USE = (
    "this kernel has opened the TPU, which one process at a time can have. Restart the kernel, and "
    "leave the TPU to the ranks: a tensor there opens it, and so does, once TorchTPU is loaded, a "
    "backward pass or a seed on the CPU. TORCH_DEVICE_BACKEND_AUTOLOAD=0 in the kernel's "
    "environment, which `make lab` sets, keeps torch from loading it unasked."
)


@checked
def launch(
    function: Callable,
    /,
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
    initialised, `pick()` the rank's device. The same function runs unchanged under `torchrun`, and
    a function that joins and leaves the group itself runs here.

    A rank gets copies: what it changes stays there, and the notebook's objects are as before. Of
    the notebook's process it has the environment variables, the folder, loggers, warnings filters,
    and settings of torch, NumPy and Python: default dtype and device, matmul precision,
    deterministic algorithms, gradients on or off, what is printed how, the recursion limit. It does
    not have random seeds, attributes that were set on modules, open files, nor changes of variables
    that libraries read when they are imported (`TORCHDYNAMO_…`, `TORCHINDUCTOR_…`,
    `TORCH_CPP_LOG_LEVEL`, `MKL_…`, `PYTHON…`): these need a new kernel. `TORCH_DISTRIBUTED_DEBUG`,
    `TORCH_LOGS` and `OMP_NUM_THREADS` are read again. Modules are imported by each rank from their
    files.

    For example, `launch(train, 100, lr=0.1, ranks=4).results` is a list of 4.

    Args:
        function: any function, closure or class, defined in a cell or a module, and its arguments;
            all of it travels by value, large tensors and arrays once for all ranks. A keyword that
            both know may be given to neither: bind the function's with `functools.partial`.
        ranks: how many processes, 1 to 64; by default `discover().ranks`.
        device: "cpu", "cuda", "xpu", or `pick(ranks=…)`, for a baseline on the same kind of device
            as other ranks; by default the accelerators where each rank gets its own, else the CPU.
        live: a `LivePlot` to draw what ranks `report()` while they run.
        time_limit: seconds until everything is ended and the ranks that did not finish are named;
            None or infinity: no limit.
        show: print what ranks print, each line with its rank.
        init_group: False leaves `torch.distributed.init_process_group()` to the function, for
            another group than that of all ranks over the device's backend.

    Returns:
        A `Run`: results, metrics, output and timeline.

    Raises:
        CourseError: nothing was started; the message says what to change.
        RankError: a rank raised, died or never finished; all others were ended.
    """
    started = time.perf_counter()
    count, kind = placement(ranks, device)
    check_files(count)
    backend = default_backend(kind) if init_group else None
    parcel, file = pack_call(function, args, kwargs)
    with uninterrupted():  # until there are ranks for it to end
        store = group.open_store()
        task = Task(
            call=parcel,
            state=state.read(group.environment(count, kind, store.port)),
            ranks=count,
            device=kind,
            backend=backend,
            threads=state.threads(int(usable_cores() // count)),
            # A collective's own limit comes later than the launch's, whose error names all ranks.
            timeout=None if time_limit is None else time_limit + 60,
            started=started,
        )
        run = Run(count, kind, backend)
        processes = [[number] for number in range(count)]
        supervisor = Supervisor(run, rank.main, processes, live=live, show=show)
    try:
        return supervisor.supervise(task, file, time_limit)
    finally:
        del store  # a traceback keeps this frame, and a fork in which it frees the store aborts


def pack_call(
    function: Callable, args: tuple, kwargs: dict[str, Any]
) -> tuple[values.Parcel, values.File | None]:
    """The call, for `values.unpack`; a `CannotBeSent` says what cannot be sent."""
    refusal = (
        "the function, or something that it uses, cannot be sent to the ranks (create it inside "
        "the function, or pass what it is made from)"
    )
    names = {name_of(function): function}
    names |= {f"argument {i}": value for i, value in enumerate(args, 1)} | kwargs
    return values.pack((function, args, kwargs), refusal, names, call=True)


def placement(ranks: int | None, device: str | torch.device | None) -> tuple[int, str]:
    """How many ranks, and their kind of device: accelerators where each gets one, else the CPU."""
    kind, native_counts = rank_accelerator()
    if ranks is None:
        ranks = default_ranks(native_counts)
    count = whole(ranks)
    if not 1 <= count <= MOST_RANKS:
        raise CourseError(
            f"ranks={ranks!r}: give a whole number from 1 to {MOST_RANKS}, for example ranks=4"
        )

    if device is not None:
        wanted = str(device)
    else:
        wanted = kind if kind and count in native_counts else "cpu"
    if wanted == "tpu" and tpus.is_open():
        if device is not None:
            raise DeviceError(f'device="tpu": {TPU_IN_USE}')
        print(f"The ranks run on the CPU: {TPU_IN_USE}")
        wanted = "cpu"
    if wanted != "cpu" and (wanted != kind or count not in native_counts):
        others = ""
        if kind:
            counts = ", ".join(map(str, native_counts))
            others = f', or on "{kind}", one device each, if they are {counts}'
        raise DeviceError(f'device="{device}": {count} ranks run on "cpu" here{others}.')
    return count, wanted
