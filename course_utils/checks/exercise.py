"""`check.<exercise>(answer)`: the published solution and the answer are probed alike and compared.

    def rows_per_device(rows, devices):  # the solution; its name is the exercise's name
        return [len(range(rows)[i::devices]) for i in range(devices)]

    @exercise(rows_per_device)
    def _(answer):  # the probe: of the solution, then of the answer
        for rows, devices in ((10, 4), (100, 7)):
            yield f"rows_per_device({rows}, {devices})", answer(rows, devices)

A probe yields `(words, value)`, or `(words, value, tol)`. Each value is compared as soon as it is
there, and the first one that differs from the solution's ends the check on all ranks together; so
what follows may rely on it. Yield what must be so of every right answer (properties, sums, the
result), not the way there. `AtMost(value, most)` holds a cost down; `("", text)` is said when the
exercise is solved. The answer runs in processes of its own: `ranks=(2, 4)` runs the probe on so
many ranks with a process group, without it in one process; `here=True` in the notebook's own
process, where a timer ends an answer that never does, if it is Python that runs. `launch` may be
another, and `unit` what it launches. `mistakes={sentence: function}`: the sentence is said where
the answer does what this wrong function does, which may be the solution, `patched`.

tests/checks/references holds solutions against something else. The notebook has the stub in a cell
tagged `exercise`, and the hints under the question.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from ..errors import RankError
from ..machine import pick
from ..ranks.failures import raised_by
from ..ranks.launcher import launch
from ..ranks.run import Run
from ..ranks.values import CannotBeSent
from ..ranks.words import failed
from ..style import plural
from .compare import Difference, difference
from .instruments import everyones
from .learner import called_otherwise, imports, is_stub, unfinished
from .verdict import Verdict, offers_solutions

Values = Iterator[tuple]  # what a probe yields: (words, value) or (words, value, tol) of each
Probe = Callable[[Callable], Values]
AT = "\0probes "  # before the words of a probe, in what a rank prints
STARTING = 30.0  # seconds more, in which the libraries of an accelerator may start
on_cpus = partial(launch, device="cpu")
# settings of the process: what tells each, and what sets it
SETTINGS: dict[str, tuple[Callable, Callable]] = {
    "default device": (torch.get_default_device, torch.set_default_device),
    "default type": (torch.get_default_dtype, torch.set_default_dtype),
    "gradients are recorded": (torch.is_grad_enabled, torch.set_grad_enabled),
    "anomalies are looked for": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "debug mode of deterministic algorithms": (
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
    "threads": (torch.get_num_threads, torch.set_num_threads),
}

found: dict[str, Exercise] = {}  # those whose module is imported


class Outcome(NamedTuple):
    """What a probe saw of an answer on one rank."""

    agreed: int  # values before the first that differs
    words: str = ""  # of the one that differs; or what is said when none does
    different: Difference | None = None
    nothing: bool = False  # the answer's first value is None where there was something to give


def exercise(solution: FunctionType, **how: Any) -> Callable[[Probe], Exercise]:
    """Turn a probe into the exercise `solution.__name__`; `how`: the fields of `Exercise`."""

    def register(probe: Probe) -> Exercise:
        found[solution.__name__] = Exercise(solution, probe, **how)
        return found[solution.__name__]

    return register


def patched(solution: Callable, target: str, **other: Any) -> Callable:
    """The solution with something else for `target`: a mock, or what `mock.patch` is told."""

    def mistake(*given: Any) -> Any:
        with mock.patch(target, **other):
            return solution(*given)

    return mistake


@dataclass(eq=False, repr=False)
class Exercise:
    """One exercise: call it with your function; `.solution()` prints the published one."""

    published: FunctionType
    probe: Probe
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
        # there are no ranks on Windows, and no limit
        self.here |= sys.platform == "win32" and not self.ranks
        self.__doc__ = f"check.{self.name}({self.name}): see what is right and what is missing."

    def __repr__(self) -> str:
        return f"check.{self.name}({self.name}), .solution()"

    def solution(self) -> None:
        """Print the published solution, after the imports that the notebook lacks."""
        if not offers_solutions():
            print("Your teacher has the solution.")
            return
        lacking = imports(self.published, vars(sys.modules["__main__"]))
        print(*lacking, inspect.getsource(self.published), sep="\n")

    def __call__(self, answer: Callable) -> Verdict:
        """Probe the answer on all numbers of ranks, and say what was found first."""
        name = self.name
        if not callable(answer) or isinstance(answer, torch.nn.Module):
            return Verdict(name, "wrong", f"Pass the function itself: `check.{name}({name})`.")
        if is_stub(answer):
            return Verdict(name, "not yet", f"Write `{name}`, then run this cell again.")
        if words := called_otherwise(self.published, answer):
            return Verdict(name, "wrong", words)

        for ranks in self.ranks or (1,):
            try:
                by_rank = self._outcomes(self.published, answer, ranks)
            except CannotBeSent as error:
                refusal = "It uses what no other process can get; make it inside the function"
                why = error.why.removeprefix("argument 3 ")  # of the task: the answer
                return Verdict(name, "wrong", f"{refusal}: {why}.")
            except RankError as error:
                return self._wrong(answer, self._in_words(error))
            if any(one is None for one in by_rank):  # a rank may end well by it, an answer not
                return self._wrong(answer, "It called sys.exit() before it returned")
            rank, outcome = min(
                enumerate(by_rank), key=lambda one: (one[1].agreed, one[1].different is None)
            )
            if outcome.different is not None:
                break
        else:
            return Verdict(name, "solved", outcome.words)

        if all(one.nothing for one in by_rank):
            text = "Nothing is filled in yet, or a `return` is missing."
            return Verdict(name, "not yet", text)
        where = outcome.words
        if self.ranks:
            where = f"{plural(ranks, self.unit)}, {self.unit} {rank}: {where}"
        because = next(self._because(answer, ranks, outcome.agreed), outcome.different.words)
        both = outcome.different.expected, outcome.different.got
        return self._wrong(answer, f"{where}: {because}", *both)

    def _wrong(self, answer: Callable, text: str, *both: str) -> Verdict:
        if unfinished(answer):
            gap = "There is still a `...` in it. Fill it in, then run this cell again."
            return Verdict(self.name, "not yet", gap)
        if text[-1] not in ".?" and "\n" not in text:
            text += "."
        return Verdict(self.name, "wrong", text, *both)

    def _in_words(self, error: RankError) -> str:
        """What is said of a failure: without the advice to whoever calls `launch`."""
        label, happened, lines, others = error.report
        happened = happened.replace("the time limit of ", "")
        if "op.preamble.length" in happened:  # gloo's words for it
            happened = "got another message than it waited for: another call, size or type"
        if "can't allocate memory" in happened:
            happened = "asked for more memory than there is: a size that it gives is wrong"
        if not self.ranks and error.run.ranks == 1:  # else a probe of its own has launched them
            label = "It"
            others = [label + sentence.removeprefix("rank 0") for sentence in others]
        sentence = f"{label} {happened}"
        raising = "It raised "
        if sentence.startswith(raising) and not lines:  # none of the learner's: in the probe
            why = sentence.removeprefix(raising).removeprefix("CourseError: ")
            sentence = f"What it returned or changed does not work: {why}"
        text = "\n".join([sentence, *lines, *others])

        printed = error.run.output[error.rank or 0].splitlines()
        reached = [line.removeprefix(AT) for line in printed if line.startswith(AT)]
        return f"{reached[-1]}: {text}" if reached and reached[-1] else text

    def _because(self, answer: Callable, ranks: int, agreed: int) -> Iterator[str]:
        """The sentences of those mistakes with which the answer agrees further than this."""
        for sentence, mistake in self.mistakes.items():
            with contextlib.suppress(RankError):  # an answer may raise further on
                outcomes = self._outcomes(mistake, answer, ranks)
                if min(outcome.agreed for outcome in outcomes) > agreed:
                    yield sentence

    def _outcomes(self, reference: Callable, answer: Callable, ranks: int) -> list[Outcome]:
        """What a probe of the answer sees on each rank."""
        mistaken = reference is not self.published
        task = (_run_probe, self.probe, reference, answer, self.tol, mistaken)
        if self.here:
            return [_in_this_process(self.seconds, *task)]

        where: dict[str, Any] = {}
        limit = self.seconds
        if not self.ranks:
            where = {"device": "cpu", "init_group": False}
        elif pick(ranks=ranks).type != "cpu":
            limit += STARTING
        return self.launch(*task, ranks=ranks, time_limit=limit, show=False, **where).results


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """A TimeoutError in the block that takes longer; not on Windows, nor in another thread."""
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TimeoutError(f"it had not finished after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _set_back() -> Iterator[None]:
    """What the block sets is set back: torch, its random numbers, the environment, the folder."""
    before = {name: tell() for name, (tell, _) in SETTINGS.items()}
    with (
        torch.random.fork_rng([]),
        mock.patch.dict(os.environ),
        contextlib.chdir(os.curdir),
    ):
        try:
            yield
        finally:
            for name, (tell, change) in SETTINGS.items():
                if tell() != before[name]:
                    change(before[name])


def _in_this_process(seconds: float, function: Callable, *args: Any) -> Outcome:
    """`function(*args)`, which prints and sets nothing here, and fails as in a launch."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, _set_back():
        try:
            with _ended_after(seconds):
                return function(*args)
        except RankError:
            raise
        except (Exception, SystemExit) as error:
            run = Run(1, "cpu", None, output=[printed.getvalue()])
            raise failed(run, 0, raised_by(error), []) from None


def _run_probe(
    probe: Probe, reference: Callable, answer: Callable, tol: float, mistaken: bool
) -> Outcome:
    """On a rank: the first value that is not the reference's, on this rank or on another."""
    agreed = 0
    values = probe(answer)
    # all of the reference's first, which may send messages, too
    for words, expected, *own in list(_as_they_are(probe(reference), mistaken)):
        print(AT + words, flush=True)  # so that it is known where an answer raised, or never ended
        try:
            _, got, *_ = next(values)
        except RuntimeError as error:
            # a `next` of the answer's, which no generator lets through
            if isinstance(error.__cause__, StopIteration):
                raise error.__cause__ from None
            raise
        if not words:
            return Outcome(agreed, got)
        different = difference(expected, got, *(own or [tol]))
        if _anywhere(different):
            nothing = agreed == 0 and got is None and expected is not None
            return Outcome(agreed, words, different, nothing)
        agreed += 1
    return Outcome(agreed)


def _as_they_are(values: Values, mistaken: bool) -> Values:
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
    return any(everyones(different is not None))
