"""Where ranks meet, and how they join: by `launch`, or by the function itself, as in a script.

`launch` joins before it calls the function. A function written for `torchrun` or `mp.spawn` joins
and leaves on its own, and both do there what they do in a script.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .. import tpus

if TYPE_CHECKING:
    import torch.distributed as dist

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": the launcher holds the store
_left: list[dist.ProcessGroup] = []  # what the function has destroyed
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
        # A function that asks torch for "the accelerator" must get the CPU here, in every rank;
        # accelerate takes ranks without a GPU for programs of their own unless it is told.
        env |= {"CUDA_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "", "ACCELERATE_USE_CPU": "true"}
    if device == "tpu":
        env |= tpus.rank_environment(ranks)
    return env


def join(rank: int, ranks: int, device: str, backend: str | None, timeout: float | None) -> None:
    """Give this rank its device and, with a backend, its process group.

    Args:
        timeout: seconds that a collective may wait; None: torch's own.
    """
    import torch
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_post_hook

    options: dict[str, Any] = {}
    if timeout is not None:
        options["timeout"] = timedelta(seconds=timeout)
    if device == "tpu":
        tpus.load()
    elif device != "cpu":
        torch.accelerator.set_device_index(rank)
        options["device_id"] = torch.device(device, rank)
    if backend is not None:
        dist.init_process_group(backend, **options)
    if device == "cpu":  # nccl does not count what is sent from one rank to one other
        register_optimizer_step_post_hook(_note_step)
    Joining(backend, rank, ranks).replace()


def _note_step(*_: Any) -> None:
    global _steps
    _steps = True


def has_trained() -> bool:
    """Whether an optimizer has made a step, in a rank that has joined a group."""
    return _steps and bool(_groups())


def has_sent() -> bool:
    """Whether this rank may have sent anything to another, or received it."""
    rpc = sys.modules.get("torch.distributed.rpc.api")
    try:
        counts = [group._get_sequence_number_for_group() for group in _groups()]
    except Exception:  # a backend that does not count
        return True
    return any(counts) or bool(rpc and rpc._ALL_WORKER_NAMES)


def _groups() -> list[Any]:
    """Those that this rank is in, or has left."""
    from torch.distributed import distributed_c10d

    return [*_left, *distributed_c10d._world.pg_map]


class Joining:
    """torch's `init_process_group` and `destroy_process_group`, as a script expects them to be in a
    rank, where `launch` has joined a group, or leaves that to the function.

    Args:
        joined: over what `launch` has joined; None: it has not.
    """

    def __init__(self, joined: str | None, rank: int, ranks: int) -> None:
        import torch.distributed as dist

        self.joined, self.rank, self.ranks = joined, rank, ranks
        self.expected = joined is not None  # that the function joins it, too
        self.joins = int(self.expected)  # over the store at this port
        self.port = os.environ["MASTER_PORT"]
        self.torchs_init, self.torchs_destroy = dist.init_process_group, dist.destroy_process_group

    def replace(self) -> None:
        """Put them in place of torch's."""
        import torch.distributed as dist
        from torch.distributed import device_mesh, distributed_c10d

        @functools.wraps(self.torchs_init)
        def init(*args: Any, **kwargs: Any) -> None:
            self.init(*args, **kwargs)

        @functools.wraps(self.torchs_destroy)
        def destroy(group: dist.ProcessGroup | None = None) -> None:
            self.destroy(group)

        for module in (dist, distributed_c10d, device_mesh):
            vars(module).update(init_process_group=init, destroy_process_group=destroy)

    def init(self, *args: Any, **kwargs: Any) -> None:
        import torch.distributed as dist

        asked = inspect.signature(self.torchs_init).bind(*args, **kwargs).arguments
        if self.expected and dist.is_initialized():
            if asked.get("store") is None:
                self._take(asked)
                return
            self.expected = False
            self.destroy()  # and meet over the function's own store

        # Elsewhere nobody holds a store for the ranks, so rank 0 is to open one.
        here = _port(asked.get("init_method")) == self.port
        os.environ[AGENT_STORE] = str(here)
        if here and "store" not in asked:
            if self.joins:  # what the group before has left in the store would mislead this one
                store = dist.TCPStore("127.0.0.1", int(self.port), is_master=False)
                asked["store"] = dist.PrefixStore(f"group {self.joins}", store)
                asked |= {"init_method": None, "rank": self.rank, "world_size": self.ranks}
            self.joins += 1
        self.torchs_init(**asked)

    def _take(self, asked: dict[str, Any]) -> None:
        """Let the group that `launch` has joined be the one that is asked for."""
        from torch.distributed import distributed_c10d

        _check_that_it_agrees(asked, str(self.joined), self.rank, self.ranks)
        if asked.get("timeout") is not None:
            distributed_c10d._set_pg_timeout(asked["timeout"])
        self.expected = False

    def destroy(self, group: dist.ProcessGroup | None = None) -> None:
        from torch.distributed import distributed_c10d

        # The last reference to a gloo group may go while Python's lock is held, by DDP for example:
        # then it waits for its thread, which waits for the lock. Kept, it ends with the rank.
        _left.extend(distributed_c10d._world.pg_map)
        self.torchs_destroy(group)


def _port(url: str | None) -> str:
    """Where this URL has ranks meet; None: where the environment says now, which a script may set.

    Whatever the host is called, it is this one.
    """
    if url is None or url.startswith("env:"):
        return os.environ.get("MASTER_PORT", "")
    return str(urlsplit(url).port)


def _check_that_it_agrees(asked: dict[str, Any], joined: str, rank: int, ranks: int) -> None:
    """Raise where the function asks for another group than the one that `launch` has joined."""
    backend = str(asked.get("backend") or joined).lower()
    other = []
    if joined not in (backend, *_of_the_cpu(backend)):
        other.append(f'backend="{backend}"')
    if str(asked.get("rank", -1)) not in ("-1", str(rank)):
        other.append(f"rank={asked['rank']}")
    if str(asked.get("world_size", -1)) not in ("-1", str(ranks)):
        other.append(f"world_size={asked['world_size']}")
    if other:
        cure = "leave that out"
        if other[0].startswith("backend"):
            cure += f', or write backend="{joined}"'
            if joined != "gloo":  # then there are GPUs, and a group of another backend may be had
                cure += ", or give launch init_group=False"
        raise RuntimeError(
            f"launch has joined the process group already, as rank {rank} of {ranks} over "
            f"{joined}, and init_process_group asks for {', '.join(other)}: {cure}"
        )


def _of_the_cpu(backend: str) -> list[str]:
    """The CPU's part of "cpu:gloo,cuda:nccl"."""
    return [part[4:] for part in backend.split(",") if part.startswith("cpu:")]
