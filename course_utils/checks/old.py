"""`check.<exercise>(answer)`: a learner's function is run, compared with what was expected, and answered in words.

How to add an exercise: in `checks/<notebook>.py` put the published solution and, below it, its check.

    from .old import exercise, expect, wrong

    def rows_per_device(rows, devices):                      # the published solution; its name is the exercise's name
        return [len(range(rows)[i::devices]) for i in range(devices)]

    @exercise(rows_per_device, "How many are left over?", "The first rows % devices get one more.")   # staged hints
    def _rows_per_device(answer):                            # answer: the learner's function, called as the solution is
        expect("rows_per_device(10, 4)", [3, 3, 2, 2], answer(10, 4))        # equal, or the check ends here in words
        expect("the sum over 7 devices", 100, sum(answer(100, 7)))           # tol=1e-5 for floats and tensors
        if any(type(n) is not int for n in answer(5, 2)):
            wrong("A number of rows is a whole number.", expected="int", got=answer(5, 2))
        return "10 rows on 4 devices: 3, 3, 2, 2."           # optional, said when it is solved

That is all: the module is found by being there, and `check.rows_per_device(rows_per_device)` works. Handled here, so
not in a check: a stub that is still empty ("Not yet"), a result passed instead of the function, the wrong parameters,
an exception in the learner's code (shown with the learner's line), None or `...` where `expect` wanted a value, hints.
Errors of a `launch(answer, …)` inside a check are said in its own words (`words.py`). Checks may import torch.
An answer for which returning None is right (it works in place) is looked at through what it changed.
In tests: `assert check.name(check.name.published)` (the solution as a function); `verdict = check.name(wrong_one)` has
`.state`, `.text`, `.expected`, `.got`, `.line`, `str(verdict)`; `all_exercises()` gives {name: Exercise}.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import CourseError, RankError
from .exercise import found  # one table of all exercises while both kinds are there
from .limit import SECONDS, TooLong, limited
from .old_compare import difference, show
from .old_learner import is_ours, parameters_differ, unfinished, untouched, where
from .verdict import Verdict
from .words import in_words


class Interrupted(CourseError):
    """The kernel was interrupted while an answer was being judged."""


class _Wrong(Exception):
    """How a check says that the answer is not right."""

    def __init__(self, why: str, expected: str = "", got: str = "", *, empty: bool = False) -> None:
        super().__init__(why)
        self.why, self.expected, self.got, self.empty = why, expected, got, empty


def wrong(why: str, *, expected: Any = "", got: Any = "") -> NoReturn:
    """End the check: `why` in a sentence, with what was expected and what came."""
    raise _Wrong(why, show(expected, plain=True), show(got, plain=True))


def expect(what: str, expected: Any, got: Any, *, tol: float = 0.0) -> None:
    """End the check unless `got` equals `expected`; tensors, arrays, floats and what holds them, to within `tol`."""
    found = difference(expected, got, tol)
    if found:
        why = f"{what}: not what was expected." if found == "not the same" else f"{what}: {found}."
        raise _Wrong(why, show(expected), show(got), empty=got is None or got is ...)


def exercise(published: Callable[..., Any], *hints: str) -> Callable[[Callable[[Any], str | None]], Exercise]:
    """Turn a check into the exercise `published.__name__`; see the top of this file."""

    def register(check: Callable[[Any], str | None]) -> Exercise:
        name = published.__name__
        assert name not in found or found[name].published.__module__ == published.__module__, f"two exercises: {name}"
        found[name] = Exercise(published, hints, check)
        return found[name]

    return register


class Exercise:
    """One exercise: call it with your function; `.hint()` for the next hint, `.solution()` for the published one."""

    def __init__(self, published: Callable[..., Any], hints: tuple[str, ...], check: Callable[..., str | None]) -> None:
        self.name, self.published, self.hints, self._check = published.__name__, published, hints, check
        self._shown = 0  # hints given since it was last solved
        self.__doc__ = f"check.{self.name}({self.name}): see what is right and what is missing."

    def __repr__(self) -> str:
        return f"check.{self.name}({self.name}), .hint(), .solution(): {len(self.hints)} hints"

    def __call__(self, answer: Callable[..., Any]) -> Verdict:
        verdict = self._judge(answer)
        if verdict:
            self._shown = 0
        elif verdict.state == "wrong":
            self._shown = min(self._shown + 1, len(self.hints))
        verdict.hints = () if verdict else self.hints[: self._shown]
        verdict.hints_total = len(self.hints)
        return verdict

    def hint(self, n: int | None = None) -> Verdict:
        """The next hint, or all of them up to the n-th."""
        if n is not None and (type(n) is not int or not 1 <= n <= len(self.hints)):
            raise CourseError(f"check.{self.name}.hint({n!r}): its hints are numbered 1 to {len(self.hints)}.")
        self._shown = n or min(self._shown + 1, len(self.hints))
        return Verdict(self.name, "hint", hints=self.hints[: self._shown], hints_total=len(self.hints))

    def solution(self) -> None:
        """Print the published solution."""
        print(inspect.getsource(self.published))

    def _judge(self, answer: Any) -> Verdict:
        name = self.name
        if not callable(answer):
            call = f"check.{name}({name})"
            return Verdict(name, "wrong", f"Pass the function itself: `{call}`, with nothing after its name.",
                           expected=f"the function {name}", got=show(answer))
        if untouched(answer):
            return Verdict(name, "not yet", f"Write `{name}`, then run this cell again.")
        if words := parameters_differ(self.published, answer):
            return Verdict(name, "wrong", "It is called with other arguments than it takes.",
                           expected=words[0], got=words[1])
        try:
            with limited(SECONDS):
                said = self._check(answer)
        except TooLong:
            why = f"It was still running after {SECONDS:.0f} s, the time of this check. Does a loop in it ever end?"
            return Verdict(name, "wrong", why)
        except KeyboardInterrupt:
            raise Interrupted(f"check.{name} was interrupted: the answer was not judged.") from None
        except RankError as error:
            return Verdict(name, "wrong", in_words(error))
        except _Wrong as mistake:
            if unfinished(answer, empty=mistake.empty):
                return Verdict(
                    name, "not yet", "It still returns nothing, or has a `...` in it. Fill it in and run again."
                )
            return Verdict(name, "wrong", mistake.why, expected=mistake.expected, got=mistake.got)
        except CourseError as error:
            return Verdict(name, "wrong", str(error))
        except (Exception, SystemExit) as error:
            if unfinished(answer):
                return Verdict(name, "not yet", "There is still a `...` in it. Fill it in and run again.")
            said_by = f"{type(error).__name__}: {error}".rstrip(": ")
            place = where(error, self._check)
            if place is None and is_ours(error):
                raise
            if place is None:
                return Verdict(name, "wrong", f"What it returned cannot be used: {said_by}")
            return Verdict(name, "wrong", f"It raised {said_by}", line=place)
        return Verdict(name, "solved", said or "")
