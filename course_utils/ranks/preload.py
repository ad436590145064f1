"""Imported once by the server that ranks are forked from: everything a rank would otherwise import by itself.

Without `torch._dynamo` here the first optimizer of every rank imports it, which takes seconds a rank.
No device may be touched: a process that has initialised CUDA cannot be forked.
"""

# ruff: noqa: F401

import ctypes
import gc
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor

from course_utils.ranks import rank

if find_spec("torch_xla"):
    import torch_xla  # starts no runtime: cores do, each launch its own

    if find_spec("lightning"):
        import lightning.pytorch

gc.collect()
gc.freeze()  # the collector then leaves these pages alone, so that ranks go on sharing them
if sys.platform == "linux":
    # In pages of 2 MiB, since a fork copies an entry for each page: a rank forks and ends some milliseconds sooner.
    madvise, MADV_COLLAPSE = (
        ctypes.CDLL(None).madvise,
        25,
    )  # an older Linux than 6.1 refuses, and nothing changes
    for place, rights, _, _, _, *name in map(
        str.split, Path("/proc/self/maps").read_text().splitlines()
    ):
        if rights == "rw-p" and name in ([], ["[heap]"]):
            begin, end = (int(number, 16) for number in place.split("-"))
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_COLLAPSE)
