"""Values that travel between the notebook and its ranks, each once.

What `pickler.py` writes is a pickle and large buffers. A megabyte or more lies in a file without a
name, which the other side maps instead of copying.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
from typing import Any, NamedTuple

from ..errors import CourseError
from ..limits import usable_memory
from ..style import size
from .files import LARGE, File
from .pickler import Pickler, why_not

ALIGN = 64  # bytes


class CannotBeSent(CourseError):
    """A function or a value that no other process can get; `why`, in words."""

    def __init__(self, refusal: str, why: str) -> None:
        super().__init__(f"{refusal}: {why}")
        self.why = why


class Parcel(NamedTuple):
    """A pickle and the buffers beside it, all in `data` or, if that is None, in a file."""

    data: bytes | None
    parts: list[tuple[int, int]]  # the pickle's first: where it begins, and where it ends
    folders: list[str]  # of the notebook's own modules that `sys.path` does not lead to


def pack(
    value: object, refusal: str, names: dict[str, Any] | None = None, *, call: bool = False
) -> tuple[Parcel, File | None]:
    """Write `value`, with what cells define; the file is None where there is little to write.

    Args:
        refusal: what the message begins with if it cannot be sent.
        names: its parts, as that message calls them.
        call: a function that goes to a rank, where `__main__` is to have what cells define.

    Raises:
        CannotBeSent
    """
    pickler = Pickler(call=call)
    try:
        pickler.dump(value)
    except Exception as error:
        raise CannotBeSent(refusal, why_not(names or {}, error)) from None

    chunks = [pickler.text.getbuffer(), *pickler.buffers]
    parts, end = [], 0
    for chunk in chunks:
        begin = -(-end // ALIGN) * ALIGN
        end = begin + chunk.nbytes
        parts.append((begin, end))
    folders = [*pickler.folders]
    if end < LARGE:
        joined = bytearray(end)
        for (begin, stop), chunk in zip(parts, chunks, strict=True):
            joined[begin:stop] = chunk
        return Parcel(bytes(joined), parts, folders), None

    free = usable_memory()[1]
    if end > free:  # a container would end whoever writes it
        raise CannotBeSent(
            refusal,
            f"it takes {size(end)}, and {size(free)} of memory is free. Send what it is made from, "
            "such as the name of a file",
        )
    try:
        file = _written(chunks, parts)
    except OSError as error:
        raise CannotBeSent(
            refusal, f"{size(end)} could not be written ({error.strerror})"
        ) from None
    return Parcel(None, parts, folders), file


def _written(chunks: list[memoryview], parts: list[tuple[int, int]]) -> File:
    """A file with these chunks at their places."""
    file = File.new()
    for (begin, _), chunk in zip(parts, chunks, strict=True):
        written = 0
        while written < chunk.nbytes:
            written += os.pwrite(file.descriptor, chunk[written:], begin + written)
    return file


def unpack(parcel: Parcel, file: File | None, *, access: int = mmap.ACCESS_COPY) -> Any:
    """The value; what is written to it stays in this process.

    Large tensors and arrays of one parcel share a mapping, which is freed when the last one is.

    Args:
        access: ACCESS_WRITE where nobody else will read the file, which saves a copy.
    """
    for folder in parcel.folders:
        if folder not in sys.path[:1]:
            sys.path.insert(0, folder)
    if parcel.data is None:
        assert file is not None, "what is not in the parcel lies in its file"
        data = memoryview(mmap.mmap(file.descriptor, 0, access=access))
    else:
        data = memoryview(parcel.data)
    pickled, *buffers = [data[begin:end] for begin, end in parcel.parts]
    return pickle.loads(pickled, buffers=buffers)
