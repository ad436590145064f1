"""Two processes that make the same values agree on all of them; what was changed since is found."""

import pickle

import pytest

from course_utils.scripts.fingerprint import ONLY_HERE, Fingerprint

MADE = """
import argparse, collections, enum, functools, pathlib, random, types
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

T = TypeVar("T")

class Box(Generic[T]):
    kind = "box"
    @property
    def size(self): return len(self.kind)
    @classmethod
    def make(cls): return cls()

@dataclass
class Options:
    lr: float = 0.1
    names: list = field(default_factory=list)

class Mode(enum.Enum):
    SLOW = 1

class Sides(enum.Flag):
    LEFT = 1
    RIGHT = 2

class Pair(NamedTuple):
    a: int
    b: str = "x"

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Embedding(2, 3, _weight=torch.ones(2, 3))
        self.again = self.inner

def make(n):
    def inner(x, y=n, *, z=[1]):
        class Local:
            words = {"a", "b", "c"}
        return functools.reduce(max, [x, y, n, *z]), Local
    return inner

@functools.cache
def cached(n): return n

net, options, pair, mode, path = Net(), Options(), Pair(1), Mode.SLOW, pathlib.Path("x")
inner, part = make(3), functools.partial(make, 1)
given = argparse.Namespace(lr=0.1), types.SimpleNamespace(lr=0.1), Box.make()
optimizer = torch.optim.AdamW(net.parameters())
tensors = {"half": torch.eye(2, dtype=torch.bfloat16), "one": torch.ones(2, requires_grad=True)}
numbers = [np.arange(3), np.float32(1), torch.Generator().manual_seed(1), random.Random(1)]
others = [torch.float32, torch.Size([1]), collections.Counter("aab"), {1: {"a", "b"}}, ..., max]
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(4)), 2)
"""


def made(*more: str) -> dict:
    """What this source makes, as a process of its own has it."""
    namespace = {"__name__": "__main__"}
    for source in (MADE, *more):
        exec(compile(source, "<cell>", "exec", dont_inherit=True), namespace)
    del namespace["__name__"], namespace["__builtins__"]
    return namespace


def test_the_same_statements_make_the_same():
    one = pickle.loads(pickle.dumps(Fingerprint(made("Sides.LEFT | Sides.RIGHT"))))
    assert one.difference(Fingerprint(made())) is None


CHANGES = {
    "options.lr": "options.lr = 0.5",
    "Options.lr": "Options.lr = 0.5",
    "given[0].lr": "given[0].lr = 0.5",
    "Box.size": "Box.size = 3",
    "make's code": "def make(n): return lambda: n",
    "inner's variable n": "inner.__closure__[0].cell_contents = 4",
    "inner's default z[0]": "inner.__kwdefaults__['z'] = [2]",
    "inner.seen": "inner.seen = 1",
    "tensors['half']": "tensors['half'][0, 1] += 1",
    "tensors['one']": "tensors['one'].requires_grad_(False)",
    "numbers[0]": "numbers[0][0] = 1",
    "numbers[2]": "numbers[2] = [0]",
    "others[2], part 0['b']": "others[2]['b'] += 1",
    "net._modules['again']": "net.again = nn.Embedding(2, 3, _weight=torch.ones(2, 3))",
    "net.training": "net.eval()",
    "data.batch_size": "object.__setattr__(data, 'batch_size', 3)",
}


@pytest.mark.parametrize(("path", "change"), CHANGES.items(), ids=CHANGES)
def test_a_change_is_found_where_it_is(path, change):
    found = Fingerprint(made(change)).difference(Fingerprint(made()))
    assert found is not None
    assert path in found


def test_every_part_has_a_place_of_its_own():
    cell = """
class A:
    b = print
    def __init__(self): self.b = A
    def __reduce__(self): return A, (), ([1], [2], {"b": 3})
a = A()
"""
    [texts] = Fingerprint({"a": made(cell)["a"]}).texts.values()
    assert texts["a's maker.b"] == "builtins.print"
    assert texts["a's state, part 0[0]"] == "1"
    assert texts["a's state, part 1[0]"] == "2"
    assert texts["a.b"] == "3"


def test_what_is_shared_is_told_from_what_is_equal():
    shared = [1]
    one, two = Fingerprint({"a": shared, "b": shared}), Fingerprint({"a": [1], "b": [1]})
    assert one.difference(two) == ("b", "b", "the same as a", "a list of 1")
    assert Fingerprint({"a": (1, 2)}).difference(Fingerprint({"a": (1, 2)})) is None


def test_a_definition_may_be_an_older_one_of_the_same_text():
    cells = "class A: pass", "a = A()", "class A: pass"
    ours, theirs = made(*cells), made(*cells[:2])
    names = ("A", "a")
    ours, theirs = ({name: one[name] for name in names} for one in (ours, theirs))
    assert Fingerprint(ours).difference(Fingerprint(theirs)) is None


def test_what_cannot_be_copied_is_never_the_same():
    words = Fingerprint({"a": {"b": iter({}.keys().__iter__, 0)}, "c": (i for i in ())})
    assert words.difference(words) == ("c", "c", ONLY_HERE, ONLY_HERE)


def test_a_module_may_be_known_by_another_name():
    from course_utils.schedules import make

    ours = Fingerprint({"make": make}, {"course_utils.schedules": "schedules"})
    assert ours.texts == {"make": {"make": "schedules.make"}}
