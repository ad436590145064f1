"""Right answers in unlike styles are solved, plausible wrong ones are not."""

import importlib
import pkgutil
from collections import defaultdict
from importlib.util import find_spec

import pytest

from course_utils import check

from . import answers

FAST = 2  # answers of an exercise that every run of the tests judges; the others are marked slow
SOON = 6.0  # seconds for an answer that never ends; there is no short limit for any other

RIGHT, WRONG, HANGS, NEEDS_XLA = defaultdict(list), defaultdict(list), set(), set()
for module in pkgutil.iter_modules(answers.__path__):
    table = importlib.import_module(f"{answers.__name__}.{module.name}")
    for name in {*table.RIGHT, *table.WRONG}:
        exercise = getattr(check, name)
        RIGHT[name] += [exercise.published, *table.RIGHT[name]]
        WRONG[name] += [*exercise.mistakes.values(), *table.WRONG[name]]
    HANGS |= getattr(table, "HANGS", set())
    NEEDS_XLA |= getattr(table, "NEEDS_XLA", set())


def cases(table):
    return [
        pytest.param(
            name, answer, id=f"{name}-{number}", marks=[pytest.mark.slow] if number >= FAST else []
        )
        for name, functions in sorted(table.items())
        for number, answer in enumerate(functions)
    ]


@pytest.fixture(autouse=True)
def environment(request):
    """In .venv-xla only the exercises that need it are judged; they are left out elsewhere."""
    needs = (
        getattr(request.node, "callspec", None)
        and request.node.callspec.params["name"] in NEEDS_XLA
    )
    if needs:
        pytest.importorskip("torch_xla", reason="needs torch_xla")
    elif find_spec("torch_xla"):
        pytest.skip("judged without torch_xla")


@pytest.mark.parametrize(("name", "answer"), cases(RIGHT))
def test_right(name, answer, monkeypatch):
    exercise = getattr(check, name)
    monkeypatch.setattr(exercise, "seconds", 600.0)
    verdict = exercise(answer)
    assert verdict, str(verdict)


@pytest.mark.parametrize(("name", "answer"), cases(WRONG))
def test_wrong(name, answer, monkeypatch):
    exercise = getattr(check, name)
    monkeypatch.setattr(exercise, "seconds", SOON if answer in HANGS else 600.0)
    verdict = exercise(answer)
    assert verdict.state == "wrong", str(verdict)
    assert verdict.text
    assert not any(ours in str(verdict) for ours in ("course_utils", "time_limit", "error.run"))
    assert not verdict.expected or verdict.expected != verdict.got, str(verdict)
    for sentence, mistake in exercise.mistakes.items():
        assert mistake is not answer or sentence in verdict.text, str(verdict)


def test_every_exercise_has_answers():
    few = {
        name: (len(RIGHT[name]), len(WRONG[name]))
        for name in RIGHT
        if len(RIGHT[name]) < 3 or len(WRONG[name]) < 4
    }
    assert not few, f"fewer than 3 right or 4 wrong answers: {few}"
