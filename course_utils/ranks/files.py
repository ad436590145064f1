"""Files without a name, in which large values lie, and what is printed of a crash."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import reduction
from typing import Any

LARGE = 1 << 20  # bytes of a value that is mapped from its file; of fewer it is copied


class File:
    """A file without a name; among the arguments of a new process, it is open there, too."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def new(cls) -> File:
        if hasattr(os, "memfd_create"):
            with suppress(OSError):  # where a container forbids it
                return cls(os.memfd_create("values"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def __reduce__(self) -> tuple[Callable, tuple]:
        return _inherited, (reduction.DupFd(self.descriptor),)

    def __del__(self) -> None:
        os.close(self.descriptor)


def _inherited(duplicate: Any) -> File:
    return File(duplicate.detach())
