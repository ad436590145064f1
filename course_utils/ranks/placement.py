"""Where the ranks of a launch run: on which devices, over which backend, with which environment."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CourseError, DeviceError
from ..machine import default_ranks, ranks_accelerator, usable_cores

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a launch run."""

    ranks: int
    device: str
    backend: str | None
    threads: int  # torch threads a rank
    env: dict[str, str]


def place(ranks: int | None, device: str | torch.device | None, backend: str | None, *, init_group: bool) -> Placement:
    """The accelerators where each rank gets its own, else the CPU; over the device's own backend.

    Raises:
        CourseError: the device or the backend asked for cannot be had; the message says what can.
    """
    import torch.distributed as dist

    kind, count = ranks_accelerator()
    ranks = ranks or default_ranks(count)
    wanted = _device_kind(device, kind, count) or (kind if kind and count >= ranks else "cpu")
    if init_group and wanted != "cpu" and count < ranks:
        _check_shared(wanted, ranks, count, backend)
        backend = backend or "gloo"
    if not init_group:
        backend = None
    elif backend is None:
        backend = dist.get_default_backend_for_device(wanted)
    else:
        _check_backend(backend, wanted)
    threads = max(1, int(usable_cores() // ranks))
    return Placement(ranks, wanted, backend, threads, _environment(ranks, wanted))


def _device_kind(device: object, kind: str | None, count: int) -> str | None:
    if device is None or str(device) == "cpu":
        return None if device is None else "cpu"
    if str(device) == kind:
        return kind
    have = f"cpu, {kind} ({count})" if kind else "cpu"
    if kind and str(device).startswith(f"{kind}:"):
        raise DeviceError(f'device="{device}" is one device, and ranks need one each: write device="{kind}".')
    raise DeviceError(f'device="{device}": launch finds no such device for ranks here. It has: {have}.')


def _check_shared(device: str, ranks: int, count: int, backend: str | None) -> None:
    """Several ranks on one accelerator: only gloo has them, and only where it can read the device's memory."""
    here = f"here {ranks} ranks would share {count} {device.upper()} device{'s' * (count > 1)}"
    if device not in _devices_of("gloo"):
        raise CourseError(
            f'device="{device}": {here}, and only gloo lets ranks share one, which moves tensors of '
            f"{' and '.join(_devices_of('gloo'))}. Use ranks={count}, or leave device out for ranks on the CPU."
        )
    if backend not in (None, "gloo"):
        raise CourseError(
            f'backend="{backend}" needs one {device.upper()} device a rank, and {here}. '
            f'Use ranks={count}, or backend="gloo".'
        )


def _check_backend(backend: object, device: str) -> None:
    """Any backend of this torch that serves the device, plugged-in ones and "cpu:gloo,cuda:nccl" included."""
    import torch.distributed as dist

    known = [name for name in dist.Backend.backend_list if name != "undefined" and dist.is_backend_available(name)]
    try:
        there = dist.is_backend_available(backend)
    except (AttributeError, ValueError):  # no text, or "device:backend" gone wrong
        there = False
    if not there:
        raise CourseError(f"backend={backend!r} is not in this torch; it has {', '.join(known)}")
    devices = _devices_of(backend)
    if device not in devices:
        instead = dist.get_default_backend_for_device(device)
        raise CourseError(
            f'backend="{backend}" moves tensors of {" and ".join(devices)}, and these ranks are on {device}: '
            f'use backend="{instead}"'
        )


def _devices_of(backend: str) -> list[str]:
    from torch.distributed.distributed_c10d import Backend, BackendConfig

    return [*BackendConfig(Backend(backend)).get_device_backend_map()]


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
