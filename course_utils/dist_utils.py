"""What a rank needs beside its training: a device of its own, the process group, metrics in a file,
spans.
"""

import gc
import itertools
import json
import os
import platform
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import record_function

STEPS = itertools.count()
_device = torch.device("cpu")


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
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if device is None:
        here = torch.accelerator.current_accelerator(check_available=True)
        # mps has no collectives
        device = "cpu" if here is None or here.type == "mps" else here.type
    _device = torch.device(device)
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
    if init_group:
        dist.init_process_group(
            dist.get_default_backend_for_device(_device),
            timeout=None if timeout is None else timedelta(seconds=timeout),
            device_id=None if device in ("cpu", "tpu") else _device,
        )


def leave_distributed(result: object = None) -> None:
    """Leave the other ranks; rank 0 prints what its function returned."""
    if result is not None and os.environ["RANK"] == "0":
        print("result:", result)
    if dist.is_initialized():  # the function may have left
        # torch may abort where a group goes while a model, or another rank, still has it.
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()


def pick() -> torch.device:
    """The device that `init_distributed` took."""
    return _device


def report(step: int | None = None, **values: float) -> None:
    """Add a line of JSON to this rank's file, runs/rank0.jsonl and so on; rank 0 prints it, too."""
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])
    numbers = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):  # whose float() would warn of its gradient
            value = value.item()
        numbers[name] = float(value)
    number = next(STEPS)
    step = number if step is None else int(step)
    line = json.dumps(dict(rank=rank, step=step, time=time.time(), **numbers))
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
