"""Makes torch_xla's cores work as threads of one process on XLA's CPU client.

As it comes, they deadlock there. Found by experiment with torch_xla 2.9.0; on a TPU nothing of this
is used. What goes wrong, and the cure:

1. XLA's collectives on a CPU meet by the number of the compiled program. Cores that compile the
   same graph at the same moment get different numbers, and wait for each other for ever. So one
   core at a time compiles and starts its program; the second finds the first one's in torch_xla's
   cache.
2. A core that starts a program waits until its previous one has ended, which needs the other cores.
   So each waits for its own device first, without the lock.
3. Reading a tensor (`.item()`, `.cpu()`, `if x:`) compiles and runs what is pending, past that
   lock; and what torch_xla creates on first use is not safe to create from two threads. So a read
   first runs what is pending, under the lock.
4. Programs that differ never meet (1), and torch_xla writes the numbers 0 and 1 into a program, and
   passes equal numbers as one: `x * rank` makes programs of their own on cores 0 and 1. Without two
   flags each number is passed in.
5. The tokens that order collectives lie in a table without a lock (`g_all_reduce_tokens` of
   cross_replica_reduces.cpp). Cores that insert their rows at one moment may crash, once in some
   hundred runs: so the rows are there before.
6. The thread that runs backward must be the core's own: a hook that all-reduces would find another
   core's device.
"""

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

RUN = ("_xla_sync_multi", "_xla_step_marker")  # of torch_xla's C++: where programs start
READ = (
    "item",
    "cpu",
    "to",
    "tolist",
    "numpy",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__array__",
)
COMPARE = ("equal", "allclose")  # of torch: they read inside
# Flags of torch's C++:
NUMBERS = ("FLAGS_torch_lazy_enable_device_data_cache", "FLAGS_torch_lazy_handle_special_scalars")

_lock = threading.RLock()
_core = threading.local()  # settled: a tensor of this core that needs no computing
_run: Callable  # torch_xla's own `_xla_sync_multi`


def install() -> None:
    """Once in a process, before the first tensor is on a virtual core."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm

    for flag in NUMBERS:
        ctypes.c_bool.in_dll(ctypes.CDLL("libtorch_cpu.so"), flag).value = False

    global _run
    binary = torch_xla._XLAC
    _run = binary._xla_sync_multi
    wrapped = (
        (binary, RUN, _one_at_a_time),
        (torch.Tensor, READ, _settled),
        (torch, COMPARE, _settled),
    )
    for owner, names, safe in wrapped:
        for name in names:
            setattr(owner, name, safe(getattr(owner, name)))

    # By default it pads with the core's own number, which gives every core a graph, and so a
    # program, of its own.
    def all_gather(value: Any, dim: int = 0, groups: Any = None, pin_layout: bool = True) -> Any:
        return xm.all_gather(value, dim, groups, pin_layout=False)

    xm._all_gather_using_all_reduce = all_gather


def make_tokens() -> None:
    """Once, before the cores are threads."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    for device in xm.get_xla_supported_devices():
        torch_xla._XLAC._get_all_reduce_token(device)


def prepare() -> None:
    """In each core, first of all: backward in this thread; what torch_xla creates on first use."""
    import torch
    import torch_xla

    torch.autograd.set_multithreading_enabled(False)
    with _lock:
        _core.settled = [torch.zeros(()).to(torch_xla.device())]
        _run(_core.settled, [], wait=True)


def wait() -> None:
    """Until this core's last program has ended; holds neither the interpreter's lock nor ours.

    Asking for a computed tensor compiles nothing, and waits. A thread that is no core (a loader's)
    waits for none.
    """
    if settled := getattr(_core, "settled", None):
        _run(settled, [], wait=True)


def _one_at_a_time(run: Callable) -> Callable:
    @functools.wraps(run)
    def locked(*args: Any, **kwargs: Any) -> None:
        waits = kwargs.pop("wait", False)
        wait()  # so that `run` cannot block while it holds the lock
        with _lock:
            run(*args, wait=False, **kwargs)
        if waits:
            wait()

    return locked


def _settled(read: Any) -> Callable:
    import torch
    import torch_xla

    @functools.wraps(read)
    def settled(*args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        pending = [tensor for tensor in tensors if tensor.device.type == "xla"]
        if not pending or (read.__name__ == "to" and not _to_cpu(*args[1:], **kwargs)):
            return read(*args, **kwargs)
        # The inputs keep their buffers: the token that orders collectives may refer to them.
        torch_xla._XLAC._xla_sync_multi(pending, [], wait=True, sync_xla_data=False)
        with _lock:
            return read(*args, **kwargs)

    return settled


def _to_cpu(*args: Any, **kwargs: Any) -> bool:
    import torch

    target = kwargs.get("device", args[0] if args else None)
    target = target.device if isinstance(target, torch.Tensor) else target
    return isinstance(target, str | torch.device) and torch.device(target).type == "cpu"
