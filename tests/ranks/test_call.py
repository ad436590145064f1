"""The call is checked before anything starts."""

import re
import sys
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
import torch

from course_utils import CourseError, launch, xla
from course_utils.ranks.call import check, seconds
from course_utils.ranks.launcher import placement
from tests.tables import like, rows


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


def ask(function, *args, **kwargs):
    """As `launch`, which begins with this; `own`: keywords of its own that are given."""
    check(function, args, kwargs, kwargs.pop("own", set()))


REFUSED = """
call                               what is said
ask(train)                         train(…) cannot be … missing a required argument: 'steps'.
ask(train, 1, 2, 3)                too many positional arguments.
ask(train, 1, rate=1)              unexpected keyword argument 'rate'.
ask(train, 1, nprocs=2)            'nprocs'. OWN
ask(train, (1, 2), processes=2)    'processes'. OWN
ask(train, args=(1,))              OWN
ask(spawned, (1, 2))               missing a required argument: 'world'. OWN
ask(nothing, 4)                    too many positional arguments. OWN
ask(nothing, rank=4)               'rank'. OWN
ask(Trainer().fit)                 ….fit(…) … missing a required argument: 'steps'.
ask(partial(train, lr=1))          missing a required argument: 'steps'.
ask(demo)                          'rank'. RECIPE of demo
ask(demo, 2, 10)                   demo would get 2 as rank, the same … RECIPE of demo
ask(spawned, 2, 10)                'epochs'. launch passes no rank: if i is … RECIPE of spawned
ask(demo, rank=1)                  missing a required argument: 'world_size'.
ask(indexed, 5)                    would get 5 as index, … it is meant so, give it by name: index=…
ask(worker, 2, None)               RECIPE of worker
ask(train(1) or 3)                 launch needs a function, and got 3. … launch(train, 10), not
"""
OWN = "Give arguments as they are, in no tuple, and the number of ranks by name"
RECIPE = r'… launch(lambda *args: \1(int(os.environ["RANK"]), *args), …)'


@pytest.mark.parametrize(("call", "says"), rows(REFUSED))
def test_a_call_that_ranks_cannot_make_is_refused(call, says):
    words = re.sub(r"RECIPE of (\w+)", RECIPE, says.replace("OWN", OWN))
    with pytest.raises(CourseError, match=like(words)):
        eval(call)


ACCEPTED = """
ask(train, 1, lr=1, own={"ranks", "device"})
ask(placed, 1)
ask(placed, 1, "cuda", own={"device"})
ask(partial(placed, device="cuda"), 1, own={"device"})
ask(demo, rank=8, world_size=2, epochs=1)
ask(indexed, index=5)
ask(print, 1, 2, own={"show"})
ask(dict.get, {}, 1)
ask(Trainer)
ask(lambda: later())
ask(lambda *args, **kwargs: 0, 1, nprocs=1, own={"device"})
"""


@pytest.mark.parametrize("call", ACCEPTED.strip().splitlines())
def test_a_call_that_they_can_make_is_not(call):
    eval(call)


@pytest.mark.parametrize("name", ["device", "ranks", "live", "show", "time_limit"])
def test_a_keyword_that_both_know_goes_to_neither(name):
    function = eval(f"lambda steps, *, {name}=None: 0")
    with pytest.raises(CourseError, match=f"{name}= may be meant for launch or for <lambda>"):
        ask(function, 1, own={name})


def test_an_argument_may_be_called_function():
    assert launch(lambda function: function(2), function=abs, ranks=1).results == [2]


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
    ("limit", "taken"),
    [(3, 3.0), (np.float64(3), 3.0), (None, None), (float("inf"), None), (sys.maxsize, None)],
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
