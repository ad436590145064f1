"""How a process joins the others, and what torch's `init_process_group` and `destroy_process_group`
do in it from then on.

It lies beside exported scripts, too, so that a process of torchrun's is what a rank of `launch` is.
"""

import functools
import inspect
import mmap
import os
from collections import Counter
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": the launcher holds the store
# A function that asks torch for "the accelerator" must get the CPU on the CPU, in every rank;
# accelerate takes ranks without a GPU for programs of their own unless it is told.
ON_CPU = {"CUDA_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "", "ACCELERATE_USE_CPU": "true"}
left: list[Any] = []  # what the function has destroyed


def join(backend: str | None, device: torch.device, timeout: float | None, caller: str) -> None:
    """Join all ranks, and let the function join and leave on its own, as a script does.

    backend: None leaves joining to the function.
    timeout: seconds that a collective may wait; None: torch's own.
    caller: who joins here, as errors call it.
    """
    replace()
    _joining.begin(caller)
    if backend is not None:
        _joining.init(
            backend,
            timeout=None if timeout is None else timedelta(seconds=timeout),
            device_id=None if device.type in ("cpu", "tpu") else device,
        )
        _joining.expected = True


@functools.cache
def replace() -> None:
    """Put functions in place of torch's, which are torch's until this process calls `join`."""
    torchs_init, torchs_destroy = _joining.torchs_init, _joining.torchs_destroy

    @functools.wraps(torchs_init)
    def init(*args: Any, **kwargs: Any) -> None:
        (_joining.init if _joining.caller else torchs_init)(*args, **kwargs)

    @functools.wraps(torchs_destroy)
    def destroy(group: dist.ProcessGroup | None = None) -> None:
        (_joining.destroy if _joining.caller else torchs_destroy)(group)

    for module in (dist, distributed_c10d, device_mesh):
        vars(module).update(init_process_group=init, destroy_process_group=destroy)


def groups() -> list[Any]:
    """Those that this rank is in, or has left."""
    return [*left, *distributed_c10d._world.pg_map]


def check_forked() -> None:
    """Raise where a process that this one has forked wanted to join: its error may be lost."""
    if _joining.refused[0]:
        raise RuntimeError(_joining.refusal())


class Joining:
    """torch's two functions where a caller has joined a group, or leaves that to the function; and
    as they are, where nobody has called `join`.
    """

    def __init__(self) -> None:
        self.caller = ""
        self.process = 0  # the one that has called `join`
        self.refused: bytearray | mmap.mmap = bytearray(1)  # whether a process forked from it was
        self.held: str | None = None  # the port of the store that the launcher holds
        self.expected = False  # that the function joins, too, what is joined already
        self.joins: Counter[str] = Counter()  # over the stores at these ports
        self.torchs_init, self.torchs_destroy = dist.init_process_group, dist.destroy_process_group

    def begin(self, caller: str) -> None:
        self.caller, self.process = caller, os.getpid()
        self.refused = mmap.mmap(-1, 1)  # memory that is shared with processes forked from it
        if os.environ.get(AGENT_STORE) == "True":
            self.held = os.environ["MASTER_PORT"]

    def init(self, *args: Any, **kwargs: Any) -> None:
        if os.getpid() != self.process:  # its group's threads are in the other one
            self.refused[0] = True
            raise RuntimeError(self.refusal())
        asked = inspect.signature(self.torchs_init).bind(*args, **kwargs).arguments
        if self.expected and dist.is_initialized():
            if asked.get("store") is None:
                self._take(asked)
                return
            self.expected = False
            self.destroy()  # and meet over the function's own store

        url = asked.get("init_method") or "env://"
        port = _port(url)
        if self.held is not None:  # elsewhere nobody holds a store, so rank 0 is to open one
            os.environ[AGENT_STORE] = str(port == self.held)
        if asked.get("store") is None:
            if self.joins[port]:  # what the group before has left in the store would mislead
                at = asked.get("rank", -1), asked.get("world_size", -1)
                store, rank, ranks = next(dist.rendezvous(url, *at))
                store = dist.PrefixStore(f"group {self.joins[port]}", store)
                asked |= {"init_method": None, "store": store, "rank": rank, "world_size": ranks}
            self.joins[port] += 1
        self.torchs_init(**asked)

    def refusal(self) -> str:
        rank = os.environ.get("RANK", "0")
        return (
            f"ranks cannot start ranks, and rank {rank} has forked a process that joins: call the "
            "function that joins in the rank itself, and leave out what starts processes"
        )

    def _take(self, asked: dict[str, Any]) -> None:
        """Let the group that is joined be the one that is asked for, or raise where it is not."""
        joined, rank, ranks = dist.get_backend(), dist.get_rank(), dist.get_world_size()
        backend = str(asked.get("backend") or joined).lower()
        on_cpu = [part[4:] for part in backend.split(",") if part.startswith("cpu:")]
        other = []
        if joined not in (backend, *on_cpu):
            other.append(f'backend="{backend}"')
        if str(asked.get("rank", -1)) not in ("-1", str(rank)):
            other.append(f"rank={asked['rank']}")
        if str(asked.get("world_size", -1)) not in ("-1", str(ranks)):
            other.append(f"world_size={asked['world_size']}")
        if other:
            cure = "leave that out"
            is_backend = other[0].startswith("backend")
            if is_backend:
                cure += f', or write backend="{joined}"'
            if not is_backend or joined != "gloo":  # without GPUs no other backend is to be had
                cure += f", or, for another group, give {self.caller} init_group=False"
            raise RuntimeError(
                f"{self.caller} has joined the process group already, as rank {rank} of {ranks} "
                f"over {joined}, and init_process_group asks for {', '.join(other)}: {cure}"
            )
        if asked.get("timeout") is not None:
            distributed_c10d._set_pg_timeout(asked["timeout"])
        self.expected = False

    def destroy(self, group: dist.ProcessGroup | None = None) -> None:
        # The last reference to a gloo group may go while Python's lock is held, by DDP for example:
        # then it waits for its thread, which waits for the lock. Kept, it ends with the process.
        left.extend(distributed_c10d._world.pg_map)
        self.torchs_destroy(group)


def _port(url: str) -> str:
    """Where this URL has ranks meet; env: where the environment says now, which a script may set.

    Whatever the host is called, it is this one.
    """
    if url.startswith("env:"):
        return os.environ.get("MASTER_PORT", "")
    return str(urlsplit(url).port)


_joining = Joining()
