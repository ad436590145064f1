"""The call is checked before anything starts."""

import re
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
import torch

from course_utils import CourseError, launch, xla
from course_utils.ranks.call import check, seconds
from course_utils.ranks.launcher import placement


def train(steps, lr=0.1): ...


def demo(rank, world_size, epochs): ...


def spawned(i, world, epochs): ...


def nothing(): ...


async def later(): ...


def indexed(index, flags=None): ...


def placed(steps, device="cpu"): ...


def worker(gpu, ngpus_per_node, args): ...


class Trainer:
    def fit(self, steps): ...

    async def fit_later(self): ...


def recipe(name):
    own = 'int(os.environ["RANK"])'
    call = re.escape(f"launch(lambda *args: {name}({own}, *args), …)")
    return rf"launch passes no rank.*{call}"


OWN = "arguments as they are, in no tuple, and the number of ranks by name.*, ranks=4"


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "words"),
    [
        (train, (), {}, "train.* cannot be called like this: missing a required argument: 'steps'"),
        (train, (1, 2, 3), {}, "too many positional arguments"),
        (train, (1,), {"rate": 1}, "unexpected keyword argument 'rate'"),
        (train, (1,), {"nprocs": 2}, f"'nprocs'.*{OWN}"),
        (train, ((1, 2),), {"num_processes": 2}, f"'num_processes'.*{OWN}"),
        (spawned, ((1, 2),), {}, f"missing.*{OWN}"),
        (train, (), {"args": (1,)}, rf"{OWN}"),
        (nothing, (4,), {}, f"too many.*{OWN}"),
        (nothing, (), {"rank": 4}, f"'rank'.*{OWN}"),
        (Trainer().fit, (), {}, "missing a required argument: 'steps'"),
        (partial(train, lr=1), (), {}, "missing a required argument: 'steps'"),
        (demo, (), {}, f"missing.*{recipe('demo')}"),
        (demo, (2, 10), {}, f"demo would get 2 as rank, the same.*{recipe('demo')}"),
        (spawned, (2, 10), {}, f"'epochs'.*if i is meant as one.*{recipe('spawned')[25:]}"),
        (demo, (), {"rank": 1}, "missing a required argument: 'world_size'.$"),
        (
            indexed,
            (5,),
            {},
            "indexed would get 5 as index.*If it is meant so, give it by name: index=…",
        ),
        (worker, (2, None), {}, recipe("worker")),
        (train(1) or 3, (), {}, r"launch needs a function, and got 3.*launch\(train, 10\), not"),
    ],
)
def test_a_call_that_ranks_cannot_make_is_refused(function, args, kwargs, words):
    with pytest.raises(CourseError, match=words):
        check(function, args, kwargs, set())


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "given"),
    [
        (train, (1,), {"lr": 1}, {"ranks", "device"}),
        (placed, (1,), {}, set()),
        (placed, (1, "cuda"), {}, {"device"}),
        (partial(placed, device="cuda"), (1,), {}, {"device"}),
        (demo, (), {"rank": 8, "world_size": 2, "epochs": 1}, set()),
        (indexed, (), {"index": 5}, set()),
        (print, (1, 2), {}, {"show"}),
        (dict.get, ({}, 1), {}, set()),
        (Trainer, (), {}, set()),
        (lambda: later(), (), {}, set()),
        (lambda *args, **kwargs: 0, (1,), {"nprocs": 1}, {"device"}),
    ],
)
def test_a_call_that_they_can_make_is_not(function, args, kwargs, given):
    check(function, args, kwargs, given)


@pytest.mark.parametrize("name", ["device", "ranks", "live", "show", "time_limit"])
def test_a_keyword_that_both_know_goes_to_neither(name):
    function = eval(f"lambda steps, *, {name}=None: 0")
    with pytest.raises(CourseError, match=f"{name}= may be meant for launch or for <lambda>"):
        check(function, (1,), {}, {name})


def test_cores_have_a_recipe_of_their_own():
    words = r"xla.launch\(lambda \*args: indexed\(xr.global_ordinal\(\), \*args\), …\)"
    with pytest.raises(CourseError, match=words):
        xla.launch(indexed)
    with pytest.raises(CourseError, match=r"'ranks'.*cores=4.*cores=, spmd=, live=, time_limit="):
        xla.launch(nothing, ranks=2)


@pytest.mark.parametrize("start", [launch, xla.launch])
@pytest.mark.parametrize(
    ("function", "runner"),
    [
        (later, "asyncio.run(later(…))"),
        (partial(later), "asyncio.run(later(…))"),
        (Trainer().fit_later, "asyncio.run(….fit_later(…))"),
    ],
)
def test_what_a_call_would_not_run_is_refused(start, function, runner):
    with pytest.raises(CourseError, match=re.escape(f"launch(lambda: {runner})")):
        start(function)


@pytest.mark.parametrize("ranks", [2, np.int64(2), np.uint8(2), torch.tensor(2)])
def test_a_number_of_ranks_may_be_numpys_or_torchs(ranks):
    assert placement(ranks, "cpu") == (2, "cpu")
    assert type(placement(ranks, "cpu")[0]) is int


@pytest.mark.parametrize("ranks", [True, np.True_, 2.0, "2", 0, -1, 65, float("nan"), [2]])
def test_what_is_no_number_of_ranks_is_refused(ranks):
    with pytest.raises(CourseError, match=r"ranks=.*: give a whole number from 1 to 64"):
        placement(ranks, "cpu")


@pytest.mark.parametrize(
    ("limit", "taken"), [(3, 3.0), (np.float64(3), 3.0), (None, None), (float("inf"), None)]
)
def test_a_time_limit_is_seconds_or_none(limit, taken):
    assert seconds(limit) == taken


@pytest.mark.parametrize("start", [launch, xla.launch])
@pytest.mark.parametrize(
    "limit", ["300", float("nan"), -1, 0, True, [3], torch.ones(2), timedelta(1)]
)
def test_what_is_no_time_limit_is_refused(start, limit):
    with pytest.raises(CourseError, match=r"time_limit=.*: give seconds.* or None for no limit"):
        start(nothing, time_limit=limit)
