"""Imported once by the server that ranks are forked from: everything a rank would otherwise import by itself.

Without `torch._dynamo` here the first optimizer of every rank imports it, which takes seconds a rank.
No device may be touched: a process that has initialised CUDA cannot be forked.
"""

import gc
import multiprocessing.connection
import multiprocessing.reduction
import os
from importlib.util import find_spec

import cloudpickle
import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.nn.parallel
import torch.optim
import torch.utils.data

from course_utils.ranks import rank

__all__ = ["cloudpickle", "multiprocessing", "rank", "torch"]

if find_spec("torch_xla"):
    os.environ.setdefault("PJRT_SELECT_DEFAULT_DEVICE", "0")  # `xla.launch` chooses, and says so
    import torch_xla  # noqa: F401 (starts no runtime: cores do, each launch its own)

    if find_spec("lightning"):
        import lightning.pytorch  # noqa: F401

if torch.cuda.is_initialized():
    raise RuntimeError("the server that ranks are forked from has initialised CUDA; ranks could not use it")

gc.collect()
gc.freeze()  # the collector then leaves these pages alone, so that ranks go on sharing them
