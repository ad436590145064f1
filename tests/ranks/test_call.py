"""The call is checked before anything starts."""

from functools import partial

import pytest

from course_utils import CourseError
from course_utils.ranks.call import check


def train(steps, lr=0.1): ...


def demo(rank, world_size, epochs): ...


def basic(rank, world_size): ...


def indexed(index, flags=None): ...


def placed(steps, device="cpu"): ...


def worker(gpu, ngpus_per_node, args): ...


class Trainer:
    def fit(self, steps): ...


RECIPE = r"launch\(lambda \*args: demo\(dist.get_rank\(\), dist.get_world_size\(\), \*args\), …\)"


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "words"),
    [
        (train, (), {}, "train.* cannot be called like this: missing a required argument: 'steps'"),
        (train, (1, 2, 3), {}, "too many positional arguments"),
        (train, (1,), {"rate": 1}, "unexpected keyword argument 'rate'"),
        (train, (1,), {"nprocs": 2}, "launch calls nprocs= ranks="),
        (train, (1,), {"num_processes": 2}, "launch calls num_processes= ranks="),
        (
            train,
            (),
            {"args": (1,)},
            r"as they are: launch\(train, 1, 2\)",
        ),
        (Trainer().fit, (), {}, "missing a required argument: 'steps'"),
        (partial(train, lr=1), (), {}, "missing a required argument: 'steps'"),
        (demo, (), {}, f"missing.*launch passes no rank: write {RECIPE}"),
        (demo, (2, 10), {}, f"demo would get 2 as rank, the same in every rank.*{RECIPE}"),
        (basic, (), {}, r"launch\(lambda: basic\(dist.get_rank\(\), dist.get_world_size\(\)\)\)"),
        (
            indexed,
            (5,),
            {},
            "indexed would get 5 as index.*If it is meant so, give it by name: index=…",
        ),
        (worker, (2, None), {}, r"worker\(dist.get_rank\(\), dist.get_world_size\(\), \*args\)"),
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
        check(indexed, (), {}, set(), cores=True)
