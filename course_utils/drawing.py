"""Which picture shows which kind of data: filled by the rooms that draw, asked by the data that is looked at.

So that data imports no drawing: `pictures` stands above it and registers its functions here when it is imported.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.singledispatch
def of(data: Any) -> Any:
    """The picture of `data`; `@drawing.of.register(Kind)` decorates the function that draws a `Kind`."""
    raise TypeError(f"no picture is registered for a {type(data).__name__}")
