"""Where ranks meet, and how `launch` has them join before it calls the function."""

from __future__ import annotations

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import tpus

if TYPE_CHECKING:
    import torch.distributed as dist

_steps = False  # an optimizer has made one


def open_store() -> dist.TCPStore:
    """Where the ranks meet, in the notebook's process; bound to loopback, because torch's own
    listens everywhere.
    """
    import torch.distributed as dist

    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    # In a thread, because an interrupt of torch's system calls would become a network error.
    with ThreadPoolExecutor(1) as thread:
        store = partial(dist.TCPStore, is_master=True, wait_for_workers=False)
        return thread.submit(store, host, port, master_listen_fd=listener.detach()).result()


def environment(ranks: int, device: str, port: int) -> dict[str, str]:
    """What `torchrun` would set, but for the ranks' own numbers."""
    from ..joining import AGENT_STORE, ON_CPU  # which imports torch

    loopback = "lo0" if sys.platform == "darwin" else "lo"
    env = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        AGENT_STORE: "True",
        # Nothing listens beyond this machine.
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
        "COURSE_DEVICE": device,  # what `pick()` answers in a rank
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # ranks on the CPU never touch a TPU
    }
    if device == "cpu":
        env |= ON_CPU
    if device == "tpu":
        env |= tpus.rank_environment(ranks)
    return env


def join(rank: int, device: str, backend: str | None, timeout: float | None) -> None:
    """Give this rank its device and, with a backend, its process group.

    Args:
        timeout: seconds that a collective may wait; None: torch's own.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from .. import joining

    if device == "tpu":
        tpus.load()
    own = torch.device(device)
    if device not in ("cpu", "tpu"):
        torch.accelerator.set_device_index(rank)
        own = torch.device(device, rank)
    joining.join(backend, own, timeout, "launch")
    if device == "cpu":  # nccl does not count what is sent from one rank to one other
        register_optimizer_step_post_hook(_note_step)


def _note_step(*_: Any) -> None:
    global _steps
    _steps = True


def has_trained() -> bool:
    """Whether an optimizer has made a step, in a rank that has joined a group."""
    from ..joining import groups

    return _steps and bool(groups())


def has_sent() -> bool:
    """Whether this rank may have sent anything to another, or received it."""
    from ..joining import groups

    rpc = sys.modules.get("torch.distributed.rpc.api")
    try:
        counts = [group._get_sequence_number_for_group() for group in groups()]
    except Exception:  # a backend that does not count
        return True
    return any(counts) or bool(rpc and rpc._ALL_WORKER_NAMES)
