"""Which picture shows which kind of data: filled by the rooms that draw, asked by the data that is looked at.

So that data imports no drawing: `pictures` stands above it and registers its functions here when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_pictures: dict[type, Callable[[Any], Any]] = {}


def draws(kind: type) -> Callable[[Callable], Callable]:
    """Decorate the function that turns a `kind` into its picture."""

    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        _pictures[kind] = function
        return function

    return register


def of(data: Any) -> Any:
    """The picture of `data`."""
    return _pictures[type(data)](data)
