"""Right answers in unlike styles are solved, plausible wrong ones are not."""

import importlib
import pkgutil
from dataclasses import replace
from importlib.util import find_spec

import pytest

from course_utils import check
from course_utils.checks import all_exercises

from . import answers

FAST = 2  # answers of an exercise that every run of the tests judges; the others are marked slow
XLA_IS_HERE = find_spec("torch_xla") is not None
SOON = 6.0  # seconds for an answer that never ends; there is no short limit for any other

# of each exercise: the published solution and others, what its mistakes do and others
RIGHT = {name: [exercise.published] for name, exercise in all_exercises().items()}
WRONG = {name: [*exercise.mistakes.values()] for name, exercise in all_exercises().items()}
HANGS, NEEDS_XLA = set(), set()
for module in pkgutil.iter_modules(answers.__path__):
    table = importlib.import_module(f"{answers.__name__}.{module.name}")
    for name in {*table.RIGHT, *table.WRONG}:
        RIGHT[name] += table.RIGHT[name]
        WRONG[name] += table.WRONG[name]
    HANGS |= getattr(table, "HANGS", set())
    NEEDS_XLA |= getattr(table, "NEEDS_XLA", set())


def test_every_exercise_has_answers():
    few = []
    for name in RIGHT:
        right, wrong = len(RIGHT[name]) - 1, len(WRONG[name])
        if right < 2 or wrong < 4:
            few.append(f"{name} has {right} more right answers and {wrong} wrong ones")
    assert not few, f"at least 2 and 4 are asked for, in tests/checks/answers: {few}"


def cases(table):
    found = []
    for name, functions in sorted(table.items()):
        for number, answer in enumerate(functions):
            # In .venv-xla only the exercises that need it are judged; they are left out elsewhere.
            elsewhere = (name in NEEDS_XLA) != XLA_IS_HERE
            where = f"judged {'with' if name in NEEDS_XLA else 'without'} torch_xla"
            marks = [pytest.mark.skipif(elsewhere, reason=where)]
            if number >= FAST:
                marks.append(pytest.mark.slow)
            found.append(pytest.param(name, answer, id=f"{name}-{number}", marks=marks))
    return found


@pytest.mark.parametrize(("name", "answer"), cases(RIGHT))
def test_right(name, answer):
    verdict = replace(getattr(check, name), seconds=600.0)(answer)
    assert verdict, str(verdict)


@pytest.mark.parametrize(("name", "answer"), cases(WRONG))
def test_wrong(name, answer):
    exercise = replace(getattr(check, name), seconds=SOON if answer in HANGS else 600.0)
    verdict = exercise(answer)
    assert verdict.state == "wrong", str(verdict)
    assert verdict.text
    assert not any(ours in str(verdict) for ours in ("course_utils", "time_limit", "error.run"))
    assert not verdict.expected or verdict.expected != verdict.got, str(verdict)
    for sentence, mistake in exercise.mistakes.items():
        assert mistake is not answer or sentence in verdict.text, str(verdict)
