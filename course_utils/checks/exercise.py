"""`check.<exercise>(answer)`: the answer and the published solution are looked at alike, and what is seen is compared.

    def rows_per_device(rows, devices):                     # the solution; its name is the exercise's name
        return [len(range(rows)[i::devices]) for i in range(devices)]

    @exercise(rows_per_device)
    def _(answer):                                          # the look: at the solution, then at the answer
        for rows, devices in ((10, 4), (100, 7)):
            yield f"rows_per_device({rows}, {devices})", answer(rows, devices)

A look yields `(words, value)`, or `(words, value, tol)`. Each value is compared as soon as it is there, and the first
one that differs from the solution's ends the check on all ranks together; so what follows may rely on it. Yield what
must be so of every right answer (properties, sums, the result), not the way there. `AtMost(value, most)` holds a cost
down; `("", text)` is said when the exercise is solved. The answer runs in processes of its own: `ranks=(2, 4)` runs the
look on so many ranks with a process group, without it in one process; `here=True` in the notebook's own process, where
nothing ends an answer that never does. `launch` may be another, and `unit` what it launches.
`mistakes={sentence: function}`: the sentence is said where the answer does what this wrong function does.

tests/checks/references holds solutions against something else. The notebook has the stub in a cell tagged `exercise`,
and the hints under the question.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from ..errors import CourseError, RankError
from ..ranks.failures import Failure, failed
from ..ranks.launch import launch
from ..ranks.rank import describe
from ..ranks.report import CannotBeSent
from ..ranks.run import Run
from .compare import Difference, difference
from .learner import called_otherwise, is_stub, unfinished
from .verdict import Verdict

Look = Callable[[Callable], Iterator[tuple]]
AT = "\0looks at "  # before the words of a look, in what a rank prints
ELSEWHERE = (
    30.0  # seconds that the libraries of an accelerator may take to start, on top of the limit
)

found: dict[str, Exercise] = {}  # those whose module is imported


class Seen(NamedTuple):
    """What a look saw of an answer on one rank."""

    same: int  # values before the first that differs
    words: str = ""  # of the one that differs; or what is said when none does
    different: Difference | None = None
    nothing: bool = False  # the answer's first value is None where there was something to give


def exercise(solution: Callable, **how: Any) -> Callable[[Look], Exercise]:
    """Turn a look into the exercise `solution.__name__`; `how`: the fields of `Exercise`; see the top of this file."""

    def register(look: Look) -> Exercise:
        found[solution.__name__] = Exercise(solution, look, **how)
        return found[solution.__name__]

    return register


@dataclass(eq=False, repr=False)
class Exercise:
    """One exercise: call it with your function; `.solution()` prints the published one."""

    published: Callable
    look: Look
    _: KW_ONLY
    ranks: tuple[int, ...] = ()
    seconds: float = 20.0
    tol: float = 1e-5
    mistakes: dict[str, Callable] = field(default_factory=dict)
    launch: Callable = launch
    unit: str = "rank"
    here: bool = False

    def __post_init__(self) -> None:
        self.name = self.published.__name__
        self.here |= (
            sys.platform == "win32" and not self.ranks
        )  # there are no ranks on Windows, and no limit
        self.__doc__ = f"check.{self.name}({self.name}): see what is right and what is missing."

    def __repr__(self) -> str:
        return f"check.{self.name}({self.name}), .solution()"

    def solution(self) -> None:
        """Print the published solution."""
        print(inspect.getsource(self.published))

    def __call__(self, answer: Callable) -> Verdict:
        """Look at the answer on all numbers of ranks, and say what was found first."""
        name = self.name
        if not callable(answer) or isinstance(answer, torch.nn.Module):
            return Verdict(name, "wrong", f"Pass the function itself: `check.{name}({name})`.")
        if is_stub(answer):
            return Verdict(name, "not yet", f"Write `{name}`, then run this cell again.")
        if words := called_otherwise(self.published, answer):
            return Verdict(name, "wrong", words)
        try:
            for ranks in self.ranks or (1,):
                by_rank = self._seen(self.published, answer, ranks)
                rank, seen = min(
                    enumerate(by_rank), key=lambda one: (one[1].same, one[1].different is None)
                )
                if seen.different:
                    break
            else:
                return Verdict(name, "solved", seen.words)
        except CannotBeSent as error:
            why = (
                f"It uses what no other process can get; make it inside the function: {error.why}."
            )
            return Verdict(name, "wrong", why)
        except RankError as error:
            return self._wrong(answer, _in_words(error, self.ranks))
        if all(one.nothing for one in by_rank):
            return Verdict(
                name, "not yet", "It still returns nothing. Fill it in, then run this cell again."
            )
        units = f"{ranks} {self.unit}{'s' * (ranks > 1)}, {self.unit} {rank}"
        where = f"{units}: {seen.words}" if self.ranks else seen.words
        because = next(self._because(answer, ranks, seen.same), seen.different.words)
        return self._wrong(
            answer, f"{where}: {because}", seen.different.expected, seen.different.got
        )

    def _wrong(self, answer: Callable, text: str, *both: str) -> Verdict:
        if unfinished(answer):
            return Verdict(
                self.name,
                "not yet",
                "There is still a `...` in it. Fill it in, then run this cell again.",
            )
        return Verdict(
            self.name, "wrong", text if text[-1] in ".?" or "\n" in text else f"{text}.", *both
        )

    def _because(self, answer: Callable, ranks: int, same: int) -> Iterator[str]:
        """The sentences of those mistakes that do what the answer does, where it is not the solution's."""
        for sentence, mistake in self.mistakes.items():
            with contextlib.suppress(RankError):  # an answer may raise further on
                if min(seen.same for seen in self._seen(mistake, answer, ranks)) > same:
                    yield sentence

    def _seen(self, reference: Callable, answer: Callable, ranks: int) -> list[Seen]:
        """What each rank saw."""
        task = _look_at, self.look, reference, answer, self.tol, reference is not self.published
        if self.here:
            return [_in_this_process(*task)]
        where = {} if self.ranks else {"device": "cpu", "init_group": False}
        more = ELSEWHERE if torch.accelerator.is_available() and self.ranks else 0.0
        return self.launch(
            *task, ranks=ranks, time_limit=self.seconds + more, show=False, **where
        ).results


def _in_this_process(function: Callable, *args: Any) -> Seen:
    """`function(*args)`, which prints nothing here and fails as in a launch."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            return function(*args)
        except CourseError:
            raise
        except (Exception, SystemExit) as error:
            name, message, frames, traceback = describe(error)
            said = f"rank 0 of 1 raised {name}" + f": {message}" * bool(message)
            first = Failure(0.0, 0, name, said, frames, traceback)
            raise failed(Run(1, "cpu", None, output=[printed.getvalue()]), first, {}) from None


def _look_at(look: Look, reference: Callable, answer: Callable, tol: float, mistaken: bool) -> Seen:
    """On a rank: the first value of the answer that is not the reference's, on this rank or on another."""
    same, words, got, values = 0, "", "", look(answer)
    for words, expected, *own in [*_as_they_are(look(reference), mistaken)]:
        print(AT + words, flush=True)  # so that it is known where an answer raised, or never ended
        try:
            _, got, *_ = next(values)
        except RuntimeError as error:
            if isinstance(
                error.__cause__, StopIteration
            ):  # a `next` of the answer's, which no generator lets through
                raise error.__cause__ from None
            raise
        different = difference(expected, got, *(own or [tol])) if words else None
        if _anywhere(different):
            return Seen(
                same, words, different, nothing=same == 0 and got is None and expected is not None
            )
        same += 1
    return Seen(same, words="" if words else got)


def _as_they_are(values: Iterator[tuple], mistaken: bool) -> Iterator[tuple]:
    """Values as they are now, since a weight goes on changing; a mistake's end where it raises."""
    try:
        for words, value, *tol in values:
            value = tree_map_only(
                torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), value
            )
            yield words, value, *tol
    except Exception:
        if not mistaken:
            raise


def _anywhere(different: Difference | None) -> bool:
    """Whether some rank found a difference; all ranks stop together."""
    if not (dist.is_available() and dist.is_initialized()):
        return different is not None
    everyones = [False] * dist.get_world_size()
    dist.all_gather_object(everyones, different is not None)
    return any(everyones)


def _in_words(error: RankError, ranks: tuple[int, ...]) -> str:
    """What is said of a failure in the ranks: a check has no `time_limit` of the learner's and leaves no `error`."""
    text = error.said.replace("after the time limit of", "after")
    reached = [
        line for line in error.run.output[error.rank or 0].splitlines() if line.startswith(AT)
    ]
    text = re.sub(
        r"waits? in all_gather_object here: \(no line known\)", "had returned", text
    )  # in _anywhere
    if not ranks:
        text = re.sub(r"^rank 0 (of 1 )?", "It ", text, flags=re.MULTILINE)
        if "\n" not in text:  # no line of the learner's: the look could not use what it got
            text = text.replace("It raised", "What it returned cannot be used:").replace(
                ": CourseError:", ":"
            )
    return f"{reached[-1].removeprefix(AT)}: {text}" if reached and reached[-1] != AT else text
