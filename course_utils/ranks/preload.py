"""What the server that ranks are forked from imports once, so that no rank has to.

Without `torch._dynamo` here the first optimizer of every rank imports it, which takes seconds a
rank. No device may be touched: a process that has initialised CUDA cannot be forked.
"""

# ruff: noqa: F401

import ctypes
import gc
import os
import signal
import sys
import types
from importlib.util import find_spec
from multiprocessing import popen_forkserver, resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import psutil
import torch
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.launcher
import torch.distributed.pipelining
import torch.distributed.tensor

from course_utils import joining
from course_utils.ranks import nested, program, rank, state, tensors

if find_spec("tqdm"):
    from tqdm import std

    # Several bars take turns in one row.
    std.tqdm.moveto = lambda self, n: self.fp.write("\r")
    # Its bars for notebooks need a kernel; in a rank they are text.
    notebook = types.ModuleType("tqdm.notebook")
    vars(notebook).update(tqdm=std.tqdm, tqdm_notebook=std.tqdm)
    vars(notebook).update(trange=std.trange, tnrange=std.trange)
    sys.modules["tqdm.notebook"] = notebook

# Torch has set, for example, a folder in TMPDIR, which the notebook may choose.
for name in os.environ.keys() - psutil.Process().environ().keys():
    del os.environ[name]

if find_spec("torch_xla"):
    import torch_xla  # starts no runtime: cores do, each launch its own

    if find_spec("lightning"):
        import lightning.pytorch

# Of memory that another process made, the tracker of a rank would remove the name when the rank
# ends (python/cpython#82300); it is told again before the rank itself does so.
attach, unlink = SharedMemory.__init__, SharedMemory.unlink


def attach_only(self: Any, name: Any = None, create: bool = False, *args: Any, **kw: Any) -> None:
    attach(self, name, create, *args, **kw)
    if not create and getattr(self, "_track", True):
        resource_tracker.unregister(self._name, "shared_memory")


def tell_and_unlink(self: Any) -> None:
    if getattr(self, "_track", True):
        resource_tracker.register(self._name, "shared_memory")
    unlink(self)


SharedMemory.__init__ = attach_only
SharedMemory.unlink = tell_and_unlink

program.forget()
nested.refuse_launchers()
state.keep()

# In ranks an interrupt waits until `program.begin`, where it has no traceback to print.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
gc.collect()
gc.freeze()  # the collector then leaves these pages alone, so that ranks go on sharing them
if sys.platform == "linux":
    # Memory in pages of 2 MiB: a fork copies an entry for each page, so a rank forks and ends some
    # milliseconds sooner. A Linux older than 6.1 refuses, and nothing changes.
    MADV_COLLAPSE = 25
    madvise = program.LIBC.madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, _, *name = line.split()
        if rights == "rw-p" and name in ([], ["[heap]"]):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_COLLAPSE)
