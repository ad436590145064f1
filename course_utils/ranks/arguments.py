"""What `launch` was asked for, checked before anything starts: refusals in words, and where the ranks will run."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ground.errors import DeviceError, LaunchError
from ..machine.limits import available_memory, usable_cores
from . import session

DEFAULT_RANKS = 4
RANK_MEMORY = 40 << 20  # bytes a rank needs at least: what it does not share with the server it is forked from
MOST_RANKS = 128  # each takes two descriptors, and many shells allow a process 256 to 1,024


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a launch run."""

    ranks: int
    device: str
    backend: str | None
    threads: int  # torch threads a rank
    env: dict[str, str]
    note: str = ""  # what a reader would not expect, to be said before the run


def check_arguments(
    function: Callable,
    *,
    ranks: int | None,
    device: str | None,
    backend: str | None,
    live: object,
    time_limit: float | None,
    init_group: bool,
) -> Placement:
    """The `Placement` for these arguments of `launch`; `LaunchError` or `DeviceError` says what to change."""
    check_call(function, live=live, time_limit=time_limit)
    return _place(_check_ranks(ranks), device, backend if init_group else None, init_group)


def check_call(function: Callable, *, live: object, time_limit: float | None) -> None:
    """What every launch checks, whatever it runs on."""
    _check_here()
    _check_function(function)
    if live is not None and not all(hasattr(live, name) for name in ("open", "add", "tick", "close")):
        raise LaunchError(f'live={live!r} is no live plot; write live=LivePlot("loss")')
    is_time = isinstance(time_limit, (int, float)) and not isinstance(time_limit, bool)
    if time_limit is not None and not (is_time and 0 < time_limit < math.inf):
        raise LaunchError(f"time_limit={time_limit!r}: give seconds, more than 0, or None for no limit")


def _check_here() -> None:
    if session.current() is not None:
        raise LaunchError(
            "launch was called inside a rank that launch started. Ranks cannot start ranks: "
            "call launch in the notebook, and the function itself in the rank."
        )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise LaunchError(
            "this process was started by torchrun, so it is already a rank: call the function itself, without launch"
        )
    if sys.platform == "win32":
        raise LaunchError(
            "launch needs Linux or macOS. On Windows, open the course in WSL2 (Ubuntu): the README says how."
        )


def _check_function(function: object) -> None:
    if callable(function):
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            kind = "an async function" if inspect.iscoroutinefunction(function) else "a generator (it has a yield)"
            raise LaunchError(f"{function.__name__} is {kind}; launch needs a plain function that returns its result")
        return
    hint = " It looks like the result of a call: write launch(train, 10), not launch(train(10))."
    hint = hint if function is None or not isinstance(function, str) else " Give the function itself, not its name."
    raise LaunchError(f"launch needs a function, and got {function!r:.60} ({type(function).__name__}).{hint}")


def _check_ranks(ranks: object) -> int | None:
    if ranks is None:
        return None
    if isinstance(ranks, bool) or not isinstance(ranks, int):
        raise LaunchError(f"ranks={ranks!r} ({type(ranks).__name__}): give a whole number, for example ranks=4")
    memory = available_memory()
    most = max(1, min(MOST_RANKS, memory // RANK_MEMORY))
    if not 1 <= ranks <= most:
        reason = f", with {memory / 2**30:.1f} GiB of memory free" if most < MOST_RANKS else ""
        raise LaunchError(f"ranks={ranks}: on this machine{reason}, launch starts 1 to {most} ranks")
    return ranks


def _place(ranks: int | None, device: object, backend: str | None, init_group: bool) -> Placement:
    import torch
    import torch.distributed as dist

    here = torch.accelerator.current_accelerator(check_available=True)
    kind, count = (here.type, torch.accelerator.device_count()) if here is not None else (None, 0)
    if kind == "mps":  # no collectives between processes there
        kind, count = None, 0
    ranks = ranks or (count if count > 1 else DEFAULT_RANKS)
    wanted = _device_kind(device, kind, count)
    note = ""
    if wanted is None:
        wanted = kind if kind and count >= ranks else "cpu"
        if kind and wanted == "cpu":
            note = (
                f"{ranks} ranks on the CPU: this machine has {_count(count, kind)}, "
                f'and each rank needs its own. launch(…, device="{kind}") shares it, over gloo.'
            )
    shared = wanted != "cpu" and count < ranks
    if shared and backend not in (None, "gloo"):
        raise LaunchError(
            f'backend="{backend}" needs one {wanted.upper()} device a rank, and here {ranks} ranks would share '
            f'{count}. Use ranks={count}, or backend="gloo".'
        )
    if shared and init_group:
        note = f"{ranks} ranks share {_count(count, wanted)}: collectives go over gloo"
    if init_group and backend is None:
        backend = "gloo" if shared else dist.get_default_backend_for_device(wanted)
    _check_backend(backend, wanted)
    threads = max(1, int(usable_cores() // ranks))
    return Placement(ranks, wanted, backend, threads, _environment(ranks, wanted), note)


def _device_kind(device: object, kind: str | None, count: int) -> str | None:
    if device is None or str(device) == "cpu":
        return None if device is None else "cpu"
    if str(device) == kind:
        return kind
    have = f"cpu, {kind} ({count})" if kind else "cpu"
    if kind and str(device).startswith(f"{kind}:"):
        raise DeviceError(f'device="{device}" is one device, and ranks need one each: write device="{kind}".')
    raise DeviceError(f"device={device!r}: launch finds no such device for ranks here. It has: {have}.")


def _count(number: int, kind: str) -> str:
    return f"{number} {kind.upper()} device{'s' if number > 1 else ''}"


def _check_backend(backend: str | None, device: str) -> None:
    import torch.distributed as dist

    if backend is None:
        return
    available = [name for name in ("gloo", "nccl", "xccl", "mpi") if dist.is_backend_available(name)]
    if backend not in available:
        raise LaunchError(f"backend={backend!r} is not in this torch; it has {', '.join(available)}")
    if device == "cpu" and backend in ("nccl", "xccl"):
        raise LaunchError(f'backend="{backend}" moves tensors between accelerators; on the CPU use backend="gloo"')


def _environment(ranks: int, device: str) -> dict[str, str]:
    """What `torchrun` would set, but for the ranks' own numbers and the store's port."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    env = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the notebook holds the store; no rank opens one
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": loopback,  # nothing listens beyond this machine
        "NCCL_SOCKET_IFNAME": loopback,
        "COURSE_DEVICE": device,  # what `pick()` answers in a rank
    }
    if device == "cpu":
        # A function that asks torch for "the accelerator" must get the CPU here, in every rank.
        env |= {"CUDA_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": ""}
    return env


def packed(function: Callable, args: tuple, kwargs: dict[str, Any]) -> bytes:
    """`(function, args, kwargs)` as bytes, by value; a `LaunchError` that names the part that cannot travel."""
    try:
        return _dumps((function, args, kwargs))
    except Exception as error:
        parts = [(f"argument {i + 1}", value) for i, value in enumerate(args)]
        parts += [(f"argument {name}", value) for name, value in kwargs.items()]
        parts += [(f"{name}, which the function uses,", value) for name, value in _used(function)]
        culprit = next((f"{name} ({type(value).__name__})" for name, value in parts if not _travels(value)), "it")
        raise LaunchError(
            f"the function cannot be sent to the ranks: {culprit} cannot be pickled ({error}). "
            "Create it inside the function, or pass what it is made from."
        ) from None


def _dumps(value: object) -> bytes:
    import io

    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):
        def reducer_override(self, value: object) -> Any:
            # cloudpickle knows modules by their exact type, and torch.backends.cudnn is one of a type of its own.
            odd = isinstance(value, types.ModuleType) and type(value) is not types.ModuleType
            if odd and sys.modules.get(value.__name__) is value:
                return importlib.import_module, (value.__name__,)
            return super().reducer_override(value)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _travels(value: object) -> bool:
    try:
        _dumps(value)
    except Exception:
        return False
    return True


def _used(function: Callable) -> list[tuple[str, object]]:
    """Globals and closure variables that a function refers to, by name."""
    try:
        variables = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return []
    return [*variables.nonlocals.items(), *variables.globals.items()]
