"""Right answers in unlike styles are solved, plausible wrong ones are not."""

import importlib
import itertools
import pkgutil
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._pytree import tree_map

from course_utils import check
from course_utils.checks import all_exercises
from course_utils.lessons.models import mlp

from . import answers
from .homeless import homeless

FAST = 1  # answers of an exercise that every run of the tests judges; the others are marked slow
ON_CORES = ("tpu_many_cores", "lightning")  # their exercises run on XLA's cores
XLA_IS_HERE = find_spec("torch_xla") is not None
SOON = 6.0  # seconds for an answer that never ends; there is no short limit for any other

# The data of a check are unkind: not whole, not positive, not sorted, no multiple of the ranks, of
# more than one type and shape, with an edge case for each sentence of the statement. Answers that
# are right for kind numbers only are made of every solution that takes some.
KIND = {
    "whole": torch.round,
    "positive": torch.abs,
    "sorted": lambda tensor: tensor.sort(0).values if tensor.dim() else tensor,
    "short": lambda tensor: tensor.bfloat16().to(tensor.dtype),
}
TAKE_NUMBERS = (
    *("scores", "move", "train_step", "backward_in_pieces", "scatter", "gather"),
    *("mean_over_ranks", "train_uneven", "idle_shares", "balance", "mlp_part"),
    *("attention_part", "merge_outputs", "to_experts", "train_large", "train_noisy"),
)
NO_MATTER = {("balance", "positive"), ("idle_shares", "positive"), ("mean_over_ranks", "sorted")}


def for_kind_numbers(solution, change):
    """The solution, with numbers that are made kind."""

    def changed(value):
        if isinstance(value, (list, float)):
            return change(torch.tensor(value, dtype=torch.float64)).tolist()
        of_floats = torch.is_tensor(value) and value.is_floating_point()
        return change(value) if of_floats else value

    def is_one(value):
        return isinstance(value, list) and value and isinstance(value[0], float)

    return lambda *given: solution(*tree_map(changed, given, is_leaf=is_one))


def published(exercise):
    """The solution; on ranks it has to run on GPUs, too."""
    on_cores = exercise.published.__module__.endswith(ON_CORES)
    return homeless(exercise.published) if exercise.ranks and not on_cores else exercise.published


def collected():
    """By exercise: right answers, and wrong ones; those that never end; exercises that need XLA."""
    right = {name: [published(exercise)] for name, exercise in all_exercises().items()}
    wrong = {name: [*exercise.mistakes.values()] for name, exercise in all_exercises().items()}
    hangs, needs_xla = set(), set()
    for module in pkgutil.iter_modules(answers.__path__):
        table = importlib.import_module(f"{answers.__name__}.{module.name}")
        for name in {*table.RIGHT, *table.WRONG}:
            right[name] += table.RIGHT[name]
            wrong[name] += table.WRONG[name]
        hangs |= getattr(table, "HANGS", set())
        needs_xla |= getattr(table, "NEEDS_XLA", set())
    for name, kind in itertools.product(TAKE_NUMBERS, KIND):
        if (name, kind) not in NO_MATTER:
            solution = all_exercises()[name].published
            wrong[name].append(for_kind_numbers(solution, KIND[kind]))
    return right, wrong, hangs, needs_xla


RIGHT, WRONG, HANGS, NEEDS_XLA = collected()


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


def count_on_the_cpu(losses):
    total = torch.zeros(2)
    total[0], total[1] = losses.sum(), len(losses)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def not_moved(batches):
    return DDP(mlp()).module


@pytest.mark.parametrize(
    ("exercise", "answer"), [("mean_over_ranks", count_on_the_cpu), ("train_uneven", not_moved)]
)
def test_a_solution_that_runs_on_the_cpu_only_would_be_seen(exercise, answer):
    verdict = getattr(check, exercise)(homeless(answer))
    assert verdict.state == "wrong"
    assert "raised" in verdict.text
