"""What travels between the notebook and its ranks: once, and as it was."""

import functools
import multiprocessing as mp
import sqlite3
import sys
import threading
import warnings

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils import CourseError, RankError, launch, report
from course_utils.machine import usable_memory
from course_utils.ranks import values
from course_utils.ranks.values import LARGE, pack, unpack

BIG = LARGE  # numbers of 4 bytes each


def travel(value):
    return unpack(*pack(value, "no", {"value": value}))


TENSORS = {
    **{
        str(dtype): torch.ones(7, dtype=dtype)
        for dtype in (torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.int8)
    },
    "float8": torch.ones(7).to(torch.float8_e4m3fn),
    "none": torch.empty(0, 3),
    "a number": torch.tensor(3.5),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "expanded": torch.ones(1, 3).expand(4, 3),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "needs a gradient": torch.ones(2, requires_grad=True),
    "computed": torch.ones(2, requires_grad=True) * 2,
    "a parameter": nn.Parameter(torch.ones(2)),
    "a frozen parameter": nn.Parameter(torch.ones(2), requires_grad=False),
    "sparse": torch.eye(3).to_sparse(),
    "large": torch.arange(BIG).view(-1, 4),
    "large, of half the bytes": torch.ones(BIG, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_is_what_it_was(name):
    before, after = TENSORS[name], travel(TENSORS[name])
    assert type(after) is type(before)
    assert (after.dtype, after.shape, after.layout) == (before.dtype, before.shape, before.layout)
    assert after.requires_grad == before.requires_grad
    dense = (after.to_dense(), before.to_dense())
    assert torch.equal(*(tensor.to(torch.complex64) for tensor in dense))


@pytest.mark.parametrize("count", [10, BIG])
def test_tensors_that_share_memory_go_on_sharing_it(count):
    whole = torch.arange(float(count))
    tied = nn.Linear(1, 1)
    tied.other = tied.weight
    first, again, view, module = travel([whole, whole, whole[2:5], tied])
    assert first is again
    first[3] = 7
    assert view.tolist() == [2, 7, 4]
    assert module.other is module.weight
    assert whole[3] == 3


@pytest.mark.parametrize(
    ("views", "most"),  # bytes
    [
        (lambda x: [x[0, :5]], 64),
        (lambda x: [x[0, :5], x[-1, -5:]], 128),  # far from each other
        (lambda x: [x[:, 1]], 4 * 1024),  # a column: a number of each row
        (lambda x: [x[3], x[3, 1:2]], 4 * 2048),  # one of the other
    ],
)
def test_a_small_view_travels_as_what_it_covers(views, most):
    before = views(torch.arange(1024.0 * 2048).view(1024, 2048))
    after = travel(before)
    assert all(map(torch.equal, after, before))
    storages = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in after}
    assert sum(storages.values()) <= most


def test_a_small_tensor_can_be_resized_and_attributes_stay():
    tensor = torch.ones(3)
    vars(tensor)["role"] = "bias"
    after = travel(tensor)
    assert after.resize_(5).shape == (5,)
    assert after.role == "bias"
    assert tensor.resize_(5).shape == (5,), "packing left the notebook's own as it was"


def test_hooks_of_a_tensor_and_of_a_module_travel():
    model = nn.Linear(2, 1, bias=False)
    told = []
    model.register_forward_hook(lambda *_: told.append("forward"))
    model.weight.register_hook(lambda gradient: 0 * gradient)
    model.weight.register_post_accumulate_grad_hook(lambda weight: told.append("ready"))

    def step(model):
        model.register_forward_hook(lambda *_: told.append("second"))
        model(torch.ones(1, 2)).sum().backward()
        return model.weight.grad.tolist(), told

    run = launch(step, model, ranks=1, device="cpu")
    assert run.results == [([[0, 0]], ["forward", "second", "ready"])]


def test_arrays_and_their_kind():
    large, small = np.arange(BIG), np.arange(6).reshape(2, 3)[:, ::2]
    after = travel({"large": large, "small": small, "bytes": b"x" * LARGE})
    np.testing.assert_array_equal(after["large"], large)
    np.testing.assert_array_equal(after["small"], small)
    assert after["large"].flags.writeable
    assert after["bytes"] == b"x" * LARGE


def test_what_a_rank_writes_stays_in_it():
    data = torch.zeros(BIG)

    def write(x):
        x += 1
        return x[:3].tolist()

    assert launch(write, data, ranks=2).results == [[1, 1, 1]] * 2
    assert data.sum() == 0


def test_ranks_map_an_argument_and_the_notebook_maps_results():
    """Of 64 MB, a copy in each rank would be private to it."""

    def private(x):
        before = psutil.Process().memory_full_info().uss
        total = x.sum().item()
        dist.barrier()  # what only one rank has looked at, or still maps, counts as private
        more = psutil.Process().memory_full_info().uss - before
        dist.barrier()
        return total, more

    [(total, more), _] = launch(private, torch.ones(16 << 20), ranks=2, device="cpu").results
    assert total == 16 << 20
    assert more < 16 << 20

    run = launch(lambda: torch.ones(16 << 20), ranks=2)
    run.results[0] += 1
    assert run.results[0].sum() == 2 * run.results[1].sum() == 32 << 20


def test_what_is_too_large_is_refused_before_it_is_written(monkeypatch):
    monkeypatch.setattr(values, "usable_memory", lambda: (1 << 30, 1 << 20))
    assert usable_memory()[1] > 1 << 20
    with pytest.raises(CourseError, match=r"it takes 4.2 MB, and 1.05 MB of memory is free"):
        launch(lambda x: 0, torch.ones(BIG), ranks=2)


def test_a_cached_function_travels_with_its_settings():
    @functools.lru_cache(maxsize=7)
    def square(x):
        return x * x

    after = travel(square)
    assert after(3) == 9
    assert after.cache_parameters() == {"maxsize": 7, "typed": False}


def test_a_function_that_dispatches_on_a_type_travels():
    @functools.singledispatch
    def total(x):
        return x

    @total.register
    def _(x: list):
        return sum(map(total, x))

    assert travel(total)([1, [2, 3]]) == 6


class AttrDict(dict):
    __getattr__ = dict.__getitem__  # raises KeyError, not AttributeError


class Meters:
    def __init__(self):
        self.meters = {}

    def __getattr__(self, name):  # asks itself without end where there are no meters yet
        if name in self.meters:
            return self.meters[name]
        raise AttributeError(name)


class Slotted:
    __slots__ = ("values",)

    def __getattr__(self, name):
        return self.values[name]


class Rows:
    @functools.cached_property
    def total(self):
        return 7


def test_objects_whose_attributes_are_odd_travel():
    Rows.__module__ = AttrDict.__module__ = "__main__"  # as if a cell had made them
    assert travel(AttrDict(lr=0.1)).lr == 0.1
    assert travel(Rows)().total == 7
    slotted = Slotted()
    slotted.values = {"lr": 0.2}
    assert travel(slotted).lr == 0.2
    logger = Meters()
    logger.meters["loss"] = [0.5]
    assert travel(logger).loss == [0.5]


def test_the_notebooks_streams_are_those_of_the_rank():
    out, err = sys.stdout, sys.stderr

    def tell():
        print("told", file=out)
        return out is sys.stdout, err is sys.stderr

    run = launch(tell, ranks=1, device="cpu")
    assert run.results == [(True, True)]
    assert run.output == ["told\n"]


def test_nested_tensors_travel():
    with warnings.catch_warnings(action="ignore"):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
        assert [part.tolist() for part in travel(nested).unbind()] == [[1, 1], [0, 0, 0]]


def test_ddp_comes_back_as_its_module():
    def train():
        return {"model": DDP(nn.Linear(2, 3))}

    for found in launch(train, ranks=2, device="cpu").results:
        assert type(found["model"]) is nn.Linear
        assert found["model"](torch.ones(1, 2)).shape == (1, 3)


def test_a_part_of_a_tensor_is_refused_with_what_to_return():
    def train():
        model = nn.Linear(4, 4)
        fully_shard(model)
        return model.state_dict()

    with pytest.raises(RankError) as caught:
        launch(train, ranks=2, device="cpu")
    for words in (
        "returned a OrderedDict, which cannot be sent back to the notebook: result['weight'] is a",
        "full_tensor(), or of a model get_model_state_dict(",
        "return model.state_dict()",
    ):
        assert words in str(caught.value)


class OfRanks:
    def __getstate__(self):
        return {"made": "in a rank"}

    def __setstate__(self, state):
        raise ValueError("not here")


def test_a_result_that_cannot_be_opened_costs_nothing_else():
    def train():
        report(loss=1.0)
        dist.barrier()
        return OfRanks() if dist.get_rank() else torch.ones(BIG)

    words = (
        "rank 1 of 2 returned a OfRanks, which cannot be opened in the notebook: ValueError: not"
    )
    with pytest.raises(RankError, match=words) as caught:
        launch(train, ranks=2, device="cpu")
    assert caught.value.run.column("loss", rank=1) == [1.0]


LOCK = threading.Lock()


class Trainer:
    def __init__(self):
        self.parts = {"lock": LOCK}


def _uses_a_trainer():
    trainer = Trainer()

    def train(steps):
        return [trainer for _ in range(steps)]

    return train


SHARED = (
    mp.Queue(),
    mp.SimpleQueue(),
    mp.Lock(),
    mp.Event(),
    mp.Value("i"),
    mp.Pipe()[0],
    mp.Pipe(),
)


def _uses_a_connection(connection):
    return lambda: connection.total_changes


@pytest.mark.parametrize(
    ("function", "args", "words"),
    [
        (_uses_a_trainer(), (1,), r"train uses trainer, and trainer.parts\['lock'\] is a _thread"),
        (_uses_a_connection(sqlite3.connect(":memory:")), (), "and connection is a sqlite3.Conn"),
        (print, (LOCK,), "argument 1 is a _thread.lock"),
        (print, ([1, (x for x in "a")],), r"argument 1\[1\] is a generator.*give list\(…\)"),
        *(
            (print, (one,), r"argument 1.* is a .*give .* of multiprocessing.Manager\(\)")
            for one in SHARED
        ),
    ],
)
def test_the_way_to_what_cannot_be_sent_is_named(function, args, words):
    with pytest.raises(CourseError, match=words):
        launch(function, *args, ranks=2)
