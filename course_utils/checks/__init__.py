"""The exercises of the notebooks: `check.<exercise>(answer)`, found by name when it is asked for.

Start with `exercise.py`, which says how to add one. A file a notebook, named after it, holds
solutions and probes.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import TYPE_CHECKING

from ..errors import CourseError

if TYPE_CHECKING:
    from .exercise import Exercise


def all_exercises() -> dict[str, Exercise]:
    """Every exercise of the course by its name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    from .exercise import found

    return found


def __getattr__(name: str) -> Exercise:
    if name.startswith("_"):
        raise AttributeError(name)
    known = all_exercises()
    if name not in known:
        near = difflib.get_close_matches(name, known, cutoff=0.0)
        raise UnknownExercise(
            f"There is no exercise check.{name}. Did you mean check.{' or check.'.join(near)}?"
        )
    return known[name]


class UnknownExercise(CourseError, AttributeError):
    """There is no exercise of that name."""


def __dir__() -> list[str]:
    return sorted(all_exercises())
