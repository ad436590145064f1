"""The script gives what the notebook gives, is clean and stands alone; what cannot leave is named in words."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from functools import partial

import pytest
import torch

from course_utils import CourseError, launch
from course_utils.export import standins
from tests.export.notebook import Notebook, clean, metrics, result

CASES = {
    "other cells": (
        ["import math", "SCALE = 2.5  # metres", "def area(r):\n    return SCALE * math.floor(r)"],
        "def f(r):\n    return area(r) + 1",
        (3.7,),
    ),
    "redefined: the latest wins": (
        ["def g():\n    return 1", "STEPS = 3", "def g():\n    return 10", "STEPS = 4"],
        "def f():\n    return g() * STEPS",
        (),
    ),
    "a default keeps what the name was": (
        ["LR = 0.5"],
        "def f(lr=LR):\n    return lr\n\nLR = 0.25",
        (),
    ),
    "decorators": (
        [
            "import functools\nFACTOR = 3",
            """
         def times(n):
             def wrap(inner):
                 @functools.wraps(inner)
                 def call(*args):
                     return n * inner(*args)

                 return call

             return wrap
         """,
        ],
        "@times(FACTOR)\ndef g(x):\n    return x\n\n\ndef f(x):\n    return g(x) + 1",
        (5,),
    ),
    "a decorated function itself": (
        ["def twice(inner):\n    return lambda *args: 2 * inner(*args)", "@twice\ndef g(x):\n    return x"],
        "def f(x):\n    return g(x)",
        (5,),
    ),
    "nested functions and shadows": (
        ["offset = 7"],
        """
        def f(x):
            def inner(offset):
                return [offset + x for x in range(offset)]

            return sum(inner(x)) + offset
        """,
        (4,),
    ),
    "classes that inherit, and what they use": (
        [
            "from dataclasses import dataclass",
            "UNIT = 2",
            "@dataclass\nclass Base:\n    n: int = UNIT",
            "class Child(Base):\n    def double(self):\n        return self.n * UNIT",
        ],
        "def f(n):\n    return Child(n).double() + Child().double()",
        (4,),
    ),
    "recursion in pairs": (
        ["def even(n):\n    return n == 0 or odd(n - 1)", "def odd(n):\n    return n != 0 and even(n - 1)"],
        "def f(n):\n    return even(n)",
        (10,),
    ),
    "a star that says where a name is from": (
        ["from math import *"],
        "def f(x):\n    return sqrt(x) + floor(pi)",
        (9.0,),
    ),
    "several names in one statement": (
        ["A, B = PAIR = 2, 'two'", "ODD = \"a'b\" + '\"'", "UNUSED = open"],
        "def f():\n    return [A, B, PAIR, ODD]",
        (),
    ),
    "a constant that the machine made": (
        [
            "import os",
            "CPUS = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1",
            "total = 0\nfor i in range(4):\n    total += i",
        ],
        "def f():\n    return [CPUS > 0, total, i]",
        (),
    ),
    "a table": (
        [
            "SQUARES = [i * i for i in range(3)]\nadd = [lambda x: x + 1][0]",
            "TABLE = {f'row {i}': [i, i / 3, None, float('inf') > i] for i in range(9)}",
        ],
        "def f():\n    return [TABLE, SQUARES, add(1)]",
        (),
    ),
    "made by a call": (
        [
            "from collections import Counter",
            'COUNTS = Counter("abracadabra")',
            "from functools import partial",
            "def add(a, b):\n    return a + b",
            "add2 = partial(add, 2)",
        ],
        'def f(x):\n    return add2(x) + COUNTS["a"]',
        (1,),
    ),
    "an import under try": (
        ["try:\n    import json as codec\nexcept ImportError:\n    codec = None"],
        "def f():\n    return codec.dumps([1])",
        (),
    ),
    "a class that a loop names": (
        ["import collections", "for kind in [collections.OrderedDict, collections.Counter]:\n    pass"],
        "def f():\n    return kind(a=2)",
        (),
    ),
    "a long list": (
        [],
        "def f(sizes, more):\n    return [sum(sizes), more]",
        ([2**i for i in range(40)], {"a": [1, None]}),
    ),
    "a type that is only a word": (
        ["from __future__ import annotations", "class Later:\n    n = 3"],
        "def f(x: int = 2) -> int:\n    def g(y: Later) -> int:\n        return y.n\n\n    return g(Later()) + x",
        (),
    ),
    "kinds of parameters": (
        [],
        'def f(a, b=2, *rest, flag=True, name="x", none=None, warm_up=1.5):\n'
        "    return [a, b, rest, flag, name, none, warm_up]",
        ([1, 2], 3, 4, "five"),
    ),
    "names of the script": (
        ["args = 3", "def main():\n    return args", "def device():\n    return 4"],
        "def f():\n    return main() + device()",
        (),
    ),
}


@pytest.mark.parametrize(("cells", "cell", "args"), CASES.values(), ids=CASES)
def test_script_returns_what_the_notebook_does(cells, cell, args, tmp_path) -> None:
    notebook = Notebook(*cells, cell)
    path = launch.export(notebook["f"], tmp_path / "script.py", *args, init_group=False)
    wanted = notebook["f"](*args)
    wanted = list(map(list_of, wanted)) if isinstance(wanted, list) else wanted
    assert result(path) == wanted
    clean(path)


def list_of(value):
    return [*value] if isinstance(value, tuple) else value


def test_options_of_the_command_line(tmp_path) -> None:
    notebook = Notebook("def f(steps, lr=0.1, *, warm_up=2, name=\"a\", shuffle=True):\n"
                        "    return [steps, lr, warm_up, name, shuffle]")
    path = launch.export(notebook["f"], tmp_path / "s.py", 10, name="b", init_group=False, show=False, time_limit=5)
    clean(path)
    assert result(path) == [10, 0.1, 2, "b", True]
    options = "--steps", "3", "--lr", "1e-3", "--warm-up", "0", "--name", "c d", "--no-shuffle"
    assert result(path, *options) == [3, 0.001, 0, "c d", False]


def test_constants_of_torch(tmp_path) -> None:
    notebook = Notebook(
        "import numpy as np\nimport torch\nfrom course_utils import pick",
        "DTYPE = torch.bfloat16\nWHERE = pick('cpu')\nHALF = np.float32(0.5)\nKINDS = [torch.float32, torch.int64]",
        """
        def f(dtype, size=2):
            x = torch.ones(size, dtype=DTYPE, device=WHERE) * float(HALF)
            return [str(x.dtype), str(x.device), x.sum().item(), str(dtype), len(KINDS)]
        """,
    )
    path = launch.export(notebook["f"], tmp_path / "s.py", notebook["torch"].int8, init_group=False)
    clean(path)
    assert result(path) == ["torch.bfloat16", "cpu", 1.0, "torch.int8", 2]


def test_course_source_comes_along_under_names_of_its_own(tmp_path) -> None:
    notebook = Notebook(
        "from course_utils.lessons import data, models\nfrom course_utils.lessons.models import mlp as net",
        'import torch\ndef Digits():\n    return "mine"',
        "numbers = data.digits()",
        """
        def f(digits, seed=1):
            mlp = models.mlp(8, seed=seed)
            torch.testing.assert_close(mlp.state_dict(), net(8, seed=seed).state_dict())
            return [len(digits.train), Digits(), sum(p.numel() for p in mlp.parameters())]
        """,
    )
    path = launch.export(notebook["f"], tmp_path / "s.py", notebook["numbers"], init_group=False)
    clean(path)
    assert result(path) == notebook["f"](notebook["numbers"]) == [1437, "mine", 682]


def test_functions_and_classes_as_arguments(tmp_path) -> None:
    notebook = Notebook(
        "from functools import partial\nfrom statistics import median as middle",
        "def add(a, b):\n    return a + b",
        "def f(first, second, third, fourth):\n    return [first([3, 1, 2]), second(1), third(1, 2), fourth(a=1)]",
    )
    values = notebook["middle"], partial(notebook["add"], b=4), notebook["add"], Counter
    path = launch.export(notebook["f"], tmp_path / "s.py", *values, init_group=False)
    clean(path)
    assert result(path) == [2, 5, 3, {"a": 1}]


def test_own_module_beside_the_notebook(tmp_path, monkeypatch) -> None:
    (tmp_path / "beside_it.py").write_text("import math\nN = 4\n\n\ndef root():\n    return math.sqrt(N)\n")
    monkeypatch.syspath_prepend(tmp_path)
    notebook = Notebook("import beside_it", "def f():\n    return beside_it.root() + beside_it.N")
    path = launch.export(notebook["f"], tmp_path / "out.py", init_group=False)
    clean(path)
    assert "beside_it" not in path.read_text()
    assert result(path) == 6.0
    sys.modules.pop("beside_it")


REFUSED = {
    "an open file": (
        "log = open('/dev/null')",
        "log.write('x')",
        r"log \(Cell In\[1\], line 1\), which f \(Cell In\[2\], line 1\) uses, .* is an open file.*inside",
    ),
    "a tensor": ("import torch\nx = torch.rand(2)", "x.sum()", r"x .*is a tensor.*inside"),
    "a model": ("import torch\nnet = torch.nn.Linear(1, 1)", "net(1)", r"net .*is a model.*inside"),
    "a lock": ("import threading\nlock = threading.Lock()", "lock.acquire()", r"lock .*cannot leave"),
    "a tool": ("from course_utils import LivePlot, discover", "discover()", r"discover.*a tool of this course"),
    "a tool by star": ("from course_utils import *", "launch(f)", r"launch.*take it out"),
    "an object of the course": ("from course_utils import LivePlot\np = LivePlot('x')", "p.tick()", "p.*a tool of"),
    "a whole module": ("from course_utils.lessons import models", "print(models)", r"models.*models\.function"),
    "the shell": ("", "get_ipython()", r"get_ipython.*is of type function, made by no statement"),
    "of IPython": ("from IPython.display import display", "display(1)", r"display.*only a notebook has"),
    "without a statement": ("exec('act = lambda x: x')", "act(1)", r"act.*by no statement of a cell"),
    "for a TPU": (
        "try:\n    import torch_xla\nexcept ImportError:\n    torch_xla = 1",
        "torch_xla.sync()",
        "torch_xla",
    ),
    "not there": ("", "helper()", r"helper.*not defined in any cell.*run the cell"),
    "named again": ("def g():\n    return 1\n\ng = [g]", "g[0]()", r"g .*had its name before"),
    "of a loop": ("for step in [object()]:\n    pass", "print(step)", r"step.*line 1, which is no plain name = "),
    "imported inside": ("", "from course_utils import pick", r"inside.*top of a cell"),
    "pick of another": ("from course_utils import pick", "pick('cpu')", r"pick\('cpu'\).*pick\(\) alone"),
}


@pytest.mark.parametrize(("cell", "line", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_leave_is_named(cell, line, words, tmp_path) -> None:
    notebook = Notebook(cell, f"def f():\n    {line}")
    with pytest.raises(CourseError, match=f"(?s){words}") as caught:
        launch.export(notebook["f"], tmp_path / "s.py")
    assert "What to do: " in str(caught.value)
    assert not (tmp_path / "s.py").exists()


def test_arguments_that_cannot_leave(tmp_path) -> None:
    notebook = Notebook("import torch\nx = torch.rand(2)", "def f(a):\n    return a")
    with pytest.raises(CourseError, match=r"argument a \(x\).*is a tensor"):
        launch.export(notebook["f"], tmp_path / "s.py", notebook["x"])
    with pytest.raises(CourseError, match=r"argument a .* no name of the notebook stands for it"):
        launch.export(notebook["f"], tmp_path / "s.py", object())
    with pytest.raises(CourseError, match=r"missing a required argument: 'a'"):
        launch.export(notebook["f"], tmp_path / "s.py")
    with pytest.raises(CourseError, match="a lambda"):
        launch.export(lambda: 1, tmp_path / "s.py")
    with pytest.raises(CourseError, match="equally many ranks"):
        launch.export(notebook["f"], tmp_path / "s.py", 1, ranks=3, nodes=2)


def test_a_file_of_somebody_else_stays(tmp_path) -> None:
    notebook = Notebook("def f():\n    return 1")
    path = tmp_path / "train.py"
    path.write_text("print('mine')\n")
    with pytest.raises(CourseError, match="is there already"):
        launch.export(notebook["f"], path, init_group=False)
    assert path.read_text() == "print('mine')\n"
    path.unlink()
    for _ in range(2):  # what was exported may be exported again
        launch.export(notebook["f"], path, init_group=False)


def test_names_of_files_and_jobs(tmp_path) -> None:
    notebook = Notebook("def f():\n    return 1")
    launch.export(notebook["f"], tmp_path / "06 My_job.py", beside=("slurm", "kubernetes"), device="cpu")
    assert {one.name for one in tmp_path.iterdir()} == {f"06 My_job{end}" for end in (".py", ".sbatch", ".yaml")}
    for end in (".sbatch", ".yaml"):
        text = (tmp_path / f"06 My_job{end}").read_text()
        assert "job-06-my-job" in text, "a name begins with a letter, and has letters, digits and - in it"
        assert "'06 My_job.py'" in text


def test_spans_reports_and_devices(tmp_path) -> None:
    notebook = Notebook(
        "from course_utils import pick, report, span",
        textwrap.dedent(
            """
            def f():
                with span("forward"):
                    report(loss=1.5)
                other = span("all-reduce", lane="communication").start()
                other.stop()
                report(loss=float("nan"))
                return str(pick())
            """
        ),
    )
    path = launch.export(notebook["f"], tmp_path / "s.py", device="cpu")
    clean(path)
    assert result(path) == "cpu"
    records = metrics(tmp_path, 0)
    assert [(one["rank"], one["step"]) for one in records] == [(0, 0), (0, 1)]
    assert records[0]["loss"] == 1.5


@pytest.mark.parametrize(("devices", "place"), [(0, "cpu"), (1, "cpu"), (2, "cuda:1"), (8, "cuda:1")])
def test_a_rank_takes_the_device_of_its_own(devices, place, monkeypatch, recwarn) -> None:
    kind = torch.device("cuda") if devices else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: kind)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert str(standins.pick()) == place
    said = [str(one.message) for one in recwarn]
    assert said == (["2 ranks on this host, 1 cuda device(s): they use the CPU"] if devices == 1 else [])
