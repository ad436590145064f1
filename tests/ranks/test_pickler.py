"""What can be sent to another process: by value, by name, as the part of a file; and why not."""

import functools
import multiprocessing as mp  # noqa: F401
import os
import sqlite3  # noqa: F401
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils import CourseError, RankError, launch
from tests.kernel import posix
from tests.ranks.test_values import travel
from tests.tables import like, rows

pytestmark = posix


def test_a_cached_function_travels_with_its_settings():
    """detectron2 caches its process groups so. 70 tokens."""

    @functools.lru_cache(maxsize=7)
    def square(x):
        return x * x

    after = travel(square)
    assert after(3) == 9
    assert after.cache_parameters() == {"maxsize": 7, "typed": False}


def test_a_function_that_chooses_by_type_travels_with_its_choices(kernel):
    """As sequoia moves batches to a device. 110 tokens."""
    kernel.works("""
        import functools
        class Pair: left, right = torch.ones(1), 2
        @functools.singledispatch
        def move(batch, device):
            'Of any type.'
            return batch
        @move.register
        def _(batch: torch.Tensor, device): return batch.to(device)
        @move.register(list)
        def _(batch, device): return [move(value, device) for value in batch]
        @move.register
        def _(batch: Pair, device): return move([batch.left, batch.right], device)
        def moved(batch):
            assert (move.__name__, move.__doc__) == ("move", "Of any type.")
            (there, number) = move([batch, "x"], "meta")[0]
            return str(there.device), number
        assert launch(moved, Pair(), ranks=1).results == [("meta", 2)]
    """)


class AttrDict(dict):
    __getattr__ = dict.__getitem__  # raises KeyError, not AttributeError


class Rows:
    @functools.cached_property
    def total(self):
        return 7


def test_an_object_with_a_getattr_travels():
    Rows.__module__ = AttrDict.__module__ = "__main__"  # as if a cell had made them
    assert travel(AttrDict(lr=0.1)).lr == 0.1
    assert travel(Rows)().total == 7


def test_a_class_of_ones_own_may_have_a_name_of_torchs():
    assert travel(DTensor()).value == 1


def test_the_notebooks_streams_are_those_of_the_rank():
    out, err = sys.stdout, sys.stderr

    def tell():
        print("told", file=out)
        return out is sys.stdout, err is sys.stderr

    run = launch(tell, ranks=1, device="cpu")
    assert run.results == [(True, True)]
    assert run.output == ["told\n"]


def test_of_some_objects_each_process_has_its_own(kernel):
    """`from os import environ` and `from random import sample` are in many scripts; MISSING is in
    transformers' HfArgumentParser, operators in torchtitan's selective checkpointing. 150 tokens.
    """
    kernel.works("""
        import dataclasses
        from os import environ
        from random import sample
        from numpy.random import randn
        @dataclasses.dataclass
        class Args: model: str
        aten, kept = torch.ops.aten, {torch.ops.aten.mm.default}
        def found():
            assert environ is os.environ and environ["RANK"] == str(dist.get_rank())
            assert dataclasses.fields(Args)[0].default is dataclasses.MISSING
            assert aten.mm.default in kept
            return sample(range(10**9), 3), randn()
        (some, normal), (others, another) = launch(found, ranks=2).results
        assert some != others and normal != another
    """)


def test_functions_that_share_a_variable_share_it_afterwards():
    """A decorator whose wrapper gets a `reset`. 100 tokens."""

    def counter():
        count = 0

        def add():
            nonlocal count
            count += 1

        class Reader:
            def read(self):
                return later, count

        later = Reader
        return add, Reader

    add, reader = travel(counter())
    add()
    add()
    assert reader().read() == (reader, 2)


def test_a_function_that_knows_itself_is_the_one_that_the_cell_names(kernel):
    kernel.works("""
        def made():
            def down(n): return [down] if n == 0 else down(n - 1)
            return down
        down = made()
        assert launch(lambda: down(3)[0] is down, ranks=1).results == [True]
    """)


def test_exit_of_a_kernel_ends_a_rank(kernel):
    """Scripts that leave by `exit()`, which is IPython's in a kernel. 20 tokens."""
    kernel.works("""
        def train():
            exit() if dist.get_rank() == 1 else None
            return 7
        assert launch(train, ranks=2).results == [7, None]
    """)


def test_types_that_pickle_finds_by_name(kernel):
    """Typed decorators; SDPBackend, which torch has renamed, in sdpa_kernel(…). 130 tokens."""
    kernel.works("""
        from torch.nn.attention import SDPBackend
        kept = launch(lambda *given: (SDPBackend, *given), SDPBackend.MATH, ranks=1).results[0]
        assert kept == (SDPBackend, SDPBackend.MATH)
        from typing import Callable, NewType, ParamSpec
        P, Step = ParamSpec("P"), NewType("Step", int)
        def logged(function: Callable[P, Step]) -> Callable[P, Step]:
            return lambda *args: function(*args)
        @logged
        def first(step: Step) -> Step: return step
        assert launch(first, Step(3), ranks=1).results == [3]
    """)


def test_ddp_comes_back_as_its_module():
    """Functions that end with `return model`. 15 tokens."""

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
        "returned a OrderedDict, which cannot be sent back to the notebook: a DTensor is a part",
        "full_tensor(), or of a model get_model_state_dict(",
    ):
        assert words in str(caught.value)


def test_what_a_module_has_made_uses_the_modules_globals(kernel, folder):
    (folder / "makes.py").write_text(
        "STATE = None\ndef set_state(x):\n    global STATE\n    STATE = x\n"
        "def make():\n    def f():\n        set_state(3)\n        return STATE\n    return f"
    )
    kernel.works("""
        sys.path.insert(0, "")
        import makes
        assert launch(makes.make(), ranks=1).results == [3]
    """)


@pytest.fixture
def folder(tmp_path, kernel):
    """A folder for modules and packages, the kernel's for a while."""
    for name in ("first", "second"):
        (tmp_path / name / "mine").mkdir(parents=True)
        (tmp_path / name / "twice.py").write_text(f"NAME = {name!r}\nclass Net: NAME = NAME")
    (tmp_path / "second" / "mine" / "__init__.py").touch()
    (tmp_path / "second" / "mine" / "data.py").write_text("NAME = 'data'")
    kernel.works(f"""
        import importlib
        os.chdir({str(tmp_path)!r})
        before, known, finders = sys.path[:], set(sys.modules), sys.meta_path[:]
    """)
    yield tmp_path
    kernel.works(f"""
        os.chdir({os.getcwd()!r})
        sys.path[:], sys.meta_path[:] = before, finders
        for name in set(sys.modules) - known: del sys.modules[name]
    """)


@pytest.mark.parametrize(
    "found",
    [
        "sys.path.insert(0, 'first')\nimport twice\nsys.path.insert(0, 'second')",
        "sys.path.insert(0, 'first')\nimport twice\nos.chdir('second')",
        "os.chdir('first')\nimport twice\nos.chdir('../second')",
        "sys.path[:0] = ['first', ['odd']]\n"
        "class Strict: find_spec = staticmethod(lambda name, path, target: None)\n"
        "sys.meta_path.insert(0, Strict)\nimport twice",
        "spec = importlib.util.spec_from_file_location('twice', 'first/twice.py')\n"
        "twice = sys.modules['twice'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(twice)",
    ],
)
def test_a_module_is_that_of_the_notebook(kernel, folder, found):
    """Scripts that import what lies beside them, after `%cd`. 160 tokens."""

    kernel.works(found)
    kernel.works("""
        from twice import Net
        def names(net): return twice.NAME, Net.NAME, type(net) is Net
        assert launch(names, Net(), ranks=2).results == [("first", "first", True)] * 2
    """)


def test_a_submodule_that_an_inner_function_uses_is_there(kernel, folder):
    """`sklearn.datasets` in a lambda, which cloudpickle does not see. 95 tokens."""

    kernel.works("""
        sys.path.insert(0, "second")
        import mine.data
        def names(): return [mine.data.NAME for _ in range(1)], (lambda: mine.data.NAME)()
        assert launch(names, ranks=1).results == [(["data"], "data")]
    """)


def test_a_module_without_a_file_is_refused(kernel):
    answer = kernel.run("""
        import types
        made = sys.modules["made"] = types.ModuleType("made")
        def use(): return made
        try: launch(use, ranks=2)
        finally: del sys.modules["made"]
    """)
    assert answer.error == "CannotBeSent"
    assert (
        "use uses made: ranks cannot import the module made: it has no file of that name"
        in answer.shown
    )


@pytest.mark.parametrize("mode", ["r+", "r", "c"])
def test_a_mapped_array_is_a_part_of_its_file(mode, tmp_path):
    """nanoGPT's `train.bin`, opened in a cell. 90 tokens."""

    path = tmp_path / "data.bin"
    np.arange(24, dtype=np.int16).tofile(path)
    array = np.memmap(path, np.int16, mode, 4, (2, 11))

    def read(array, view):
        before = array.tolist(), view.tolist(), array.flags.writeable
        if mode != "r":
            array[0, 0] = 99
            array.flush()
        return before

    [(whole, view, writeable)] = launch(read, array, array[:, ::-2], ranks=1).results
    assert array[0, 0] == (99 if mode == "r+" else 2)
    array = np.memmap(path, np.int16, "c", 4, (2, 11))
    array[0, 0] = 2
    assert (whole, view) == (array.tolist(), array[:, ::-2].tolist())
    assert writeable == (mode != "r")


def test_a_mapped_array_whose_file_is_gone_travels_as_what_is_in_it(tmp_path):
    path = tmp_path / "data.bin"
    np.arange(9).tofile(path)
    array = np.memmap(path, int, "r")
    path.unlink()
    assert launch(lambda: array.tolist(), ranks=1).results == [[*range(9)]]


def _uses(trainer):
    def train(steps):
        return [trainer for _ in range(steps)]

    return train


class DTensor:  # not torch's
    value = 1


def _with_what_is_defined_later():
    lock = threading.Lock()

    def first():
        return later, lock

    if lock is None:
        later = 1  # its cell is empty
    return first


def _with_a_hook():
    weight = nn.Linear(1, 1).weight
    weight.register_post_accumulate_grad_hook(print)
    return weight


REFUSED = """
call                                              what is said
launch(_with_what_is_defined_later())             first uses lock: cannot pickle
launch(print, _with_a_hook())                     argument 1: a tensor has hooks, which cannot be
launch(_uses([threading.Lock()]), 1)              train uses trainer: cannot pickle '_thread.lock'
launch(_uses(sqlite3.connect(":memory:")), 1)     train uses trainer: …'sqlite3.Connection'
launch(print, 1, threading.Lock())                argument 2: cannot pickle '_thread.lock' object
launch(print, [1, (x for x in "a")])              argument 1: … 'generator' …: give list
launch(print, mp.Queue())                         argument 1: … one of multiprocessing.Manager()
launch(print, mp.Value("i"))                      argument 1: … one of multiprocessing.Manager()
launch(print, mp.Pipe()[0])                       give a Queue of multiprocessing.Manager()
"""


@pytest.mark.parametrize(("call", "says"), rows(REFUSED))
def test_what_cannot_be_sent_is_named(call, says):
    with pytest.raises(CourseError, match=like(says)):
        eval(call)
