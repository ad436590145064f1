"""Imported once by the server that ranks are forked from: everything a rank would otherwise import by itself.

Without `torch._dynamo` here the first optimizer of every rank imports it, which takes seconds a rank.
No device may be touched: a process that has initialised CUDA cannot be forked.
"""

# ruff: noqa: F401

import ctypes
import gc
import multiprocessing.connection
import multiprocessing.reduction
import os
import sys
from importlib.util import find_spec

import cloudpickle
import torch
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor
import torch.nn.parallel
import torch.optim
import torch.utils.data

from course_utils.ranks import rank

if find_spec("torch_xla"):
    os.environ.setdefault("PJRT_SELECT_DEFAULT_DEVICE", "0")  # `xla.launch` chooses, and says so
    import torch_xla  # starts no runtime: cores do, each launch its own

    if find_spec("lightning"):
        import lightning.pytorch

LARGE, MADV_COLLAPSE = 2 << 20, 25


def use_large_pages() -> None:
    """Put what was imported into pages of 2 MiB: a fork copies an entry for each page, and its end removes them.

    A rank then takes 1 ms to fork and 3 to end, where 220 MB in small pages take 8 and 10. Linux has it since 6.1.
    """
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as maps:
        for place, rights, _, _, _, *name in map(str.split, maps.readlines()):
            if rights == "rw-p" and name in ([], ["[heap]"]):
                begin, end = (int(number, 16) for number in place.split("-"))
                begin, end = -(-begin // LARGE) * LARGE, end // LARGE * LARGE
                if begin < end:  # an older Linux refuses, and nothing changes
                    madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_COLLAPSE)


gc.collect()
gc.freeze()  # the collector then leaves these pages alone, so that ranks go on sharing them
if sys.platform == "linux":
    use_large_pages()
