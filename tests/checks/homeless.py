"""Whether a function that runs on ranks says where each tensor it makes lives, so that it runs on
GPUs, too.

On GPUs a collective takes no tensor of the CPU, and where ranks are on the CPU nobody would notice
one. A `homeless` function runs on CPU ranks, and what it makes without a device is a meta tensor:
it has no numbers, and no collective takes it.
"""

import functools
import sys
from unittest import mock

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors


class Homeless(TorchFunctionMode):
    """What the course's own code makes without saying where goes to the meta device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ours = "/torch/" not in sys._getframe(1).f_code.co_filename
        if ours and func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def homeless(function):
    """The function with `Homeless`; a network that it makes must be moved before it is wrapped."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        given = [id(value) for value in args if isinstance(value, nn.Module)]
        move, wrap = nn.Module.to, DDP.__init__

        def moved(module, *where, **options):
            given.append(id(module))
            return move(module, *where, **options)

        def wrapped(self, module, *more, **options):
            assert id(module) in given, "DDP of a network that was not moved with .to(pick())"
            wrap(self, module, *more, **options)

        with (
            mock.patch.object(nn.Module, "to", moved),
            mock.patch.object(DDP, "__init__", wrapped),
            Homeless(),
        ):
            return function(*args, **kwargs)

    return run
