"""The exercises of the notebooks: `check.<exercise>(answer)`, found by name when it is asked for.

Start with `exercise.py`, which says how to add one; a file a topic holds the published solutions and their checks,
`verdict.py` is the answer that the notebook shows, `learner.py` and `compare.py` read what the learner gave.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from ..errors import CourseError
from .exercise import Exercise, found


class UnknownExercise(CourseError, AttributeError):
    """There is no exercise of that name."""


def all_exercises() -> dict[str, Exercise]:
    """Every exercise of the course by its name; imports all the check modules."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")
    return found


def __getattr__(name: str) -> Exercise:
    if name.startswith("_"):
        raise AttributeError(name)
    known = found if name in found else all_exercises()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)
    raise UnknownExercise(f"There is no exercise check.{name}. Did you mean {', '.join(f'check.{n}' for n in near)}?")


def __dir__() -> list[str]:
    return sorted(all_exercises())
