"""Functions that would start ranks inside a rank, and processes that a rank may start."""

import functools  # noqa: F401
import multiprocessing
import re
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.run import main as torchrun
from torch.multiprocessing import start_processes
from torch.utils.data import DataLoader

from course_utils import CourseError, RankError, launch
from tests.kernel import posix
from tests.tables import like, rows

pytestmark = posix


here = sys.modules[__name__]


def demo(rank, world_size, *options):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dist.barrier()


def by_setup(rank, world_size):
    demo(rank, world_size)


class Trainer:
    def work(self, rank, world_size):
        demo(rank, world_size)


def by_class(rank, world_size):
    Trainer().work(rank, world_size)


def by_module(rank, world_size):
    here.demo(rank, world_size)


def closed():
    def setup(rank):
        demo(rank, 2)

    def work(rank, world_size):
        setup(rank)

    loop("fork", work)


def call(function, *numbers):
    function(*numbers)


def as_an_argument():
    mp.get_context("fork").Process(target=call, args=(demo, 0, 2)).start()


class AttrDict(dict):
    __getattr__ = dict.__getitem__


CONFIG = AttrDict(lr=1)


def with_a_dict(queue):
    queue.put(CONFIG.lr)


def harmless():
    queue = mp.get_context("fork").SimpleQueue()
    process = mp.get_context("fork").Process(target=with_a_dict, args=(queue,))
    process.start()
    return queue.get()


class OfItsOwn(multiprocessing.Process):
    def run(self):
        demo(0, 2)


def of_its_own():
    OfItsOwn().start()


def twice():
    process = multiprocessing.get_context("fork").Process(target=double, args=(1,))
    process.start()
    process.join()
    process.start()


def double(number):
    return 2 * number


def spawned(nprocs, *args):
    mp.spawn(demo, args=args, nprocs=nprocs)


def started():
    start_processes(demo, args=(2,), nprocs=2, start_method="fork")


def bound_inside():
    from torch.multiprocessing.spawn import start_processes

    start_processes(demo, args=(2,), nprocs=2)


def of_a_library():
    mp.spawn(torch.ones, nprocs=2)


def elastic():
    elastic_launch(LaunchConfig(1, 1, 2), double)(3)


def by_torchrun():
    torchrun(["--nproc-per-node=2", "train.py"])


def loop(method, function, **kwargs):
    context = mp.get_context(method)
    processes = [context.Process(target=function, args=(i, 2), kwargs=kwargs) for i in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def test_what_a_process_uses_may_have_odd_attributes():
    assert launch(harmless, ranks=1, device="cpu").results == [1]


REFUSED = """
call                                     what to write
spawned(2, 2)                            launch(lambda *args: demo(int(… ranks=2).
spawned(0, 0)                            launch(lambda *args: demo(int(…, *args), …).
started()                                launch(lambda *args: demo(int(… ranks=2).
bound_inside()                           launch(lambda *args: demo(int(… ranks=2).
of_a_library()                           launch(…, ranks=2)
elastic()                                launch(double, …, ranks=2)
by_torchrun()                            launch(…, ranks=2)
loop("fork", by_setup)                   launch(lambda *args: by_setup(int(
loop("spawn", by_setup)                  launch(lambda *args: by_setup(int(
loop("forkserver", by_class)             launch(lambda *args: by_class(int(
loop("spawn", Trainer().work)            launch(…) with the function that each is to call
of_its_own()                             launch(…) with the function that each is to call
loop("fork", functools.partial(by_setup))  launch(lambda *args: by_setup(int(
closed()                                 launch(lambda *args: work(int(
as_an_argument()                         launch(lambda *args: call(int(
loop("spawn", by_module)                 launch(lambda *args: by_module(int(
"""


def tried(calls):
    """What each of these calls raises."""
    said = {}
    for one in calls:
        with pytest.raises(CourseError) as caught:
            eval(one)
        said[one] = str(caught.value)
    return said


def test_who_would_start_ranks_is_told_what_to_write():
    recipes = dict(rows(REFUSED))
    for said in launch(tried, [*recipes], ranks=2, device="cpu").results:
        for call, recipe in recipes.items():
            assert re.search(like(recipe), said[call]), (call, said[call])


def in_a_pool():
    with mp.get_context("fork").Pool(1) as pool:
        pool.starmap(demo, [(0, 2)])


class Asked:
    """Whose class does not say what it calls."""

    def __call__(self):
        demo(0, 2)


def that_it_leaves_alone():
    mp.get_context("fork").Process(target=Asked()).start()


@pytest.mark.parametrize("function", [in_a_pool, that_it_leaves_alone])
def test_a_process_that_joins_though_nobody_could_know_fails_the_launch(function):
    with pytest.raises(RankError, match=r"RuntimeError: ranks cannot start ranks.* has forked"):
        launch(function, ranks=2, device="cpu")
    assert launch(double, 1, ranks=2, device="cpu").results == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_that_join_no_group_are_a_ranks_own_business(method):
    def work():
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            doubled = pool.map(double, [1, 2])
        process = context.Process(target=double, args=(1,))
        process.start()
        process.join()
        loader = DataLoader([1, 2], num_workers=1, multiprocessing_context=method)
        return doubled, process.exitcode, len([*loader])

    assert launch(work, ranks=1, device="cpu").results == [([2, 4], 0, 2)]


def test_its_errors_are_those_of_a_rank_and_pythons_own_stay():
    with pytest.raises(RankError, match=r"CourseError: ranks cannot(.*\n)*.*in started"):
        launch(started, ranks=2, device="cpu")
    with pytest.raises(RankError, match="AssertionError: cannot start a process twice"):
        launch(twice, ranks=1)
