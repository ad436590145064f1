"""Published solutions that run on ranks say where each tensor they make lives, so that they run on
GPUs, too.

On GPUs a collective takes no tensor of the CPU, and where ranks are on the CPU nobody would notice
one. Here a solution runs on CPU ranks, and what it makes without a device is a meta tensor: it has
no numbers, and no collective takes it.
"""

import functools
import sys
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from course_utils import check
from course_utils.checks import all_exercises
from course_utils.lessons.models import mlp

ON_CORES = ("tpu_many_cores", "lightning")


class Homeless(TorchFunctionMode):
    """What the course's own code makes without saying where goes to the meta device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ours = "/torch/" not in sys._getframe(1).f_code.co_filename
        if ours and func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def homeless(solution):
    """The solution with `Homeless`; a network that it makes must be moved before it is wrapped."""

    @functools.wraps(solution)
    def run(*args, **kwargs):
        given = [id(value) for value in args if isinstance(value, nn.Module)]
        move, wrap = nn.Module.to, DDP.__init__

        def moved(module, *where, **options):
            given.append(id(module))
            return move(module, *where, **options)

        def wrapped(self, module, *more, **options):
            assert id(module) in given, "DDP of a network that was not moved with .to(pick())"
            wrap(self, module, *more, **options)

        with (
            mock.patch.object(nn.Module, "to", moved),
            mock.patch.object(DDP, "__init__", wrapped),
            Homeless(),
        ):
            return solution(*args, **kwargs)

    return run


# The exercises whose answers run on ranks, but for those on XLA's cores.
ON_RANKS = [
    name
    for name, exercise in all_exercises().items()
    if exercise.ranks and not exercise.published.__module__.endswith(ON_CORES)
]


@pytest.mark.parametrize("name", ON_RANKS)
def test_a_solution_says_where_its_tensors_live(name):
    exercise = replace(getattr(check, name), seconds=600.0)
    verdict = exercise(homeless(exercise.published))
    assert verdict, str(verdict)


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
def test_it_would_be_seen(exercise, answer):
    verdict = getattr(check, exercise)(homeless(answer))
    assert verdict.state == "wrong"
    assert "raised" in verdict.text
