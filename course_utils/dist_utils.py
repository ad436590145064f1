"""What a rank needs beside its training: a device of its own, the process group, metrics in a file,
spans.
"""

import atexit
import ctypes
import itertools
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from .joining import AGENT_STORE, ON_CPU, check_forked, groups, join, replace
from .records import checked

STEPS = itertools.count()
_device = torch.device("cpu")
replace()  # before a script's other modules import torch's functions by name


def init_distributed(
    device: str | None = None, *, timeout: float | None = None, init_group: bool = True
) -> None:
    """Take a device of this rank's own, and join the other ranks.

    device: "cpu", "cuda", …; by default the kind of accelerator that this host has, and the CPU
        where it has none.
    timeout: seconds that a collective waits for the other ranks; by default torch's own.
    init_group: False leaves `dist.init_process_group()` to what follows.

    Raises:
        RuntimeError: this host has fewer accelerators than ranks. Its CPU, over gloo, would wait
            for others' nccl.
    """
    global _device
    if "RANK" not in os.environ:  # torchrun did not start it: a world of one rank
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", AGENT_STORE: "False"}
    if device is None:
        here = torch.accelerator.current_accelerator(check_available=True)
        # mps has no collectives
        device = "cpu" if here is None or here.type == "mps" else here.type
    _device = torch.device(device)
    if device == "cpu":
        os.environ |= ON_CPU
    if device not in ("cpu", "tpu"):  # TorchTPU gives each process a TPU of its own, tpu:0
        rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        count = torch.get_device_module(device).device_count()
        if count < ranks:
            why = (
                f"{platform.node()} has {count} of the {ranks} {device} devices that its ranks need"
            )
            raise RuntimeError(
                f"{why}: start fewer ranks, or all ranks of all hosts with --device cpu"
            )
        torch.accelerator.set_device_index(rank)
        _device = torch.device(device, rank)
    backend = dist.get_default_backend_for_device(_device) if init_group else None
    join(backend, _device, timeout, "init_distributed")
    atexit.register(_end)


def _end() -> None:
    """See to it that no thread of a group asks for Python's lock when Python is gone: it aborts."""
    for group in groups():  # which Python would free, and wait for their threads
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    time.sleep(0.1)  # for what they still free of the last collective


def leave_distributed(result: object = None) -> None:
    """Leave the other ranks; rank 0 prints what its function returned."""
    check_forked()
    if result is not None and os.environ["RANK"] == "0":
        print("result:", result)
    if dist.is_initialized():  # the function may have left
        dist.barrier()  # torch may abort where a group goes while another rank still has it
        dist.destroy_process_group()


def pick() -> torch.device:
    """The device that `init_distributed` took."""
    return _device


def report(step: int | None = None, **values: Any) -> None:
    """Add a line of JSON to this rank's file, runs/rank0.jsonl and so on; rank 0 prints it, too."""
    step, numbers = checked(step, values, TypeError)
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])
    number = next(STEPS)
    if step is None:
        step = number
    line = json.dumps({"rank": rank, "step": step, "time": time.time()} | numbers)
    file = Path("runs", f"rank{rank}.jsonl")
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as out:
        print(line, file=out)
    if rank == 0:
        print(line, flush=True)


class span(record_function):
    """A stretch of work, by name, for torch.profiler: `with span("forward"):`, or `start()` and
    `stop()`.
    """

    def __init__(self, name: str, *, lane: str = "compute") -> None:
        super().__init__(name, lane)

    def start(self) -> "span":
        return self.__enter__()

    def stop(self) -> None:
        self.__exit__(None, None, None)
