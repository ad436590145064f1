"""What an exported script has in place of the course's own functions; its source goes into the script as it is."""

from __future__ import annotations

import argparse  # noqa: F401  the scripts' own main uses these
import itertools
import json
import os
import time
import warnings
from datetime import timedelta  # noqa: F401
from functools import cache
from pathlib import Path
from typing import Self, TextIO

import torch
import torch.distributed as dist  # noqa: F401
from torch.distributed.elastic.multiprocessing.errors import record  # noqa: F401
from torch.profiler import record_function

# What torchrun sets; `python` alone is a world of one rank.
ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
RUNS = Path("runs")
STEPS = itertools.count()


def pick() -> torch.device:
    """This rank's accelerator where each rank of this host has its own, else the CPU."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None or kind.type == "mps":
        return torch.device("cpu")
    ranks, devices = int(os.environ["LOCAL_WORLD_SIZE"]), torch.accelerator.device_count()
    if devices < ranks:
        warnings.warn(f"{ranks} ranks on this host, {devices} {kind.type} device(s): they use the CPU", stacklevel=2)
        return torch.device("cpu")
    return torch.device(kind.type, int(os.environ["LOCAL_RANK"]))


@cache
def metrics_file() -> TextIO:
    """This rank's file; a run that is started again goes on at its end."""
    RUNS.mkdir(parents=True, exist_ok=True)
    return (RUNS / f"rank{os.environ['RANK']}.jsonl").open("a", buffering=1)


def report(step: int | None = None, **values: float) -> None:
    """Write one JSON line to this rank's file; rank 0 prints it, too."""
    step = next(STEPS) if step is None else step
    head = {"rank": int(os.environ["RANK"]), "step": step, "time": time.time()}
    line = json.dumps(head | {name: float(value) for name, value in values.items()})
    print(line, file=metrics_file())
    if head["rank"] == 0:
        print(line, flush=True)


class span(record_function):
    """A stretch of work, by name, for torch.profiler."""

    def __init__(self, name: str, *, lane: str = "compute") -> None:
        super().__init__(name, lane)

    def start(self) -> Self:
        self.__enter__()
        return self

    def stop(self) -> None:
        self.__exit__(None, None, None)
