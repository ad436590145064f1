"""The script gives what the notebook gives, alone; what cannot leave is named in words."""

import errno
import re
import sys
from pathlib import Path

import pytest
import torch

from course_utils import CourseError, export
from tests.files import write
from tests.python import python
from tests.scripts.notebook import Notebook, cells_of, metrics, result, training

CASES = {
    "defined twice: the one that ran last, and decorators": (
        [
            "import functools\nSTEPS = 3  # of them",
            "def times(n):\n    return functools.partial(map, lambda x: n * x)",
            "def g():\n    return 1",
            "@functools.cache\ndef g():\n    return 10",
            "STEPS = 4",
        ],
        "def f():\n    return [*times(g())(range(STEPS))]",
        (),
    ),
    "a closure, a lambda, nested functions and shadows": (
        [
            "offset = 7\nadd = [lambda x: x + 1][0]",
            "def make(n):\n    def inner(offset):\n        return offset + n\n    return inner",
            "g = make(3)",
        ],
        "f = make(add(g(1)) + offset)",
        (5,),
    ),
    "a default and an attribute that share a name's object, or no longer": (
        [
            "FIRST, SECOND, THIRD = [], [], []",
            "class Kept:\n    log = SECOND\n    same = THIRD",
            "def fill(n, into=FIRST):\n    into.append(n)",
            "FIRST, SECOND = [], []",
        ],
        """
        def f():
            fill(1), Kept.log.append(1), Kept.same.append(1)
            return [FIRST, SECOND, THIRD, fill.__defaults__, Kept.log]
        """,
        (),
    ),
    "several names in one statement, constants changed since": (
        [
            "A, B = PAIR = 2, 'two'; C = 4\nrate, units = 0.5, [print]\nrate = 0.9",
            "total, options = 0, {}",
            "for i in range(4):\n    total += i",
            "options['a'] = [1, 2]",
        ],
        "def f():\n    return [A, B, C, PAIR, total, i, options, rate, len(units)]",
        (),
    ),
    "a module and parts of it": (
        [
            "import xml.dom.minidom",
            "import xml.dom",
            "import xml",
        ],
        """
        def f():
            return xml.dom.minidom.Node.ELEMENT_NODE
        """,
        (),
    ),
    "an operator with a backward, and a class that torch has renamed": (
        [
            "import torch\nfrom torch.nn.attention import SDPBackend\nway = SDPBackend.MATH",
            """
            class Double(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x): return 2 * x
                @staticmethod
                def backward(ctx, gradient): return 3 * gradient
            """,
        ],
        """
        def f():
            x = torch.ones(1, requires_grad=True)
            Double.apply(x).backward()
            return [x.grad.item(), str(way)]
        """,
        (),
    ),
    "what each process has of its own, and what joins": (
        [
            "import attrs, os\nfrom os import environ\nfrom threading import _active_limbo_lock",
            "from numpy.random import rand, seed\nfrom random import random, seed as start",
            "@attrs.frozen\nclass Frozen:\n    x: int = 1",
            """
            import torch.distributed as dist
            if "RANK" in os.environ: dist.init_process_group("gloo")
            class Args: pass
            args = Args()
            """,
            "args.steps = 3 if 'RANK' in os.environ and dist.init_process_group() else 4",
        ],
        """
        def f():
            seed(1), start(2)
            with _active_limbo_lock:
                drawn = [rand(), random()]
            return [*drawn, environ is os.environ, len({Frozen(), Frozen()}), args.steps]
        """,
        (),
    ),
    "bound again under a condition": (
        ["import math", "root = getattr(math, 'no', None)\nif root is None:\n    root = math.sqrt"],
        "def f():\n    return root(4.0)",
        (),
    ),
    "several statements on a line": (
        [
            "import math; unused = [math]",
            "small = 'ü'; both = [small, math.tau]; print(unused)",
        ],
        "def f():\n    return [math.pi, *both]",
        (),
    ),
    "objects that were changed since": (
        [
            "import argparse\nfrom dataclasses import dataclass",
            "@dataclass\nclass Options:\n    lr: float = 0.1",
            "class Static:\n    lr = 0.1\n    def double(self):\n        return 2 * self.lr",
            "a, b, c = argparse.Namespace(lr=0.1), Options(), Static()",
            "a.lr = b.lr = Static.lr = 0.5; seen = [print]",
            "Static.lower = 'lr'; seen.append(len); seen.append(len)",
            "parser = argparse.ArgumentParser()\nparser.add_argument('--n', type=int)",
            "d = parser.parse_args(['--n', '3'])",
        ],
        "def f():\n    return [a.lr, b.lr, c.double(), c.lower, len(seen), d.n]",
        (),
    ),
    "a magic, a star, a loop, made of itself, and names that the script has": (
        [
            "get_ipython().run_cell_magic('time', '', 'def main(args):\\n    return args')",
            "from math import *\nimport xml as dist",
            "for parser in [object()]:\n    record = os = result = 1",
            "floors = floor\nfloors = [floors]",
        ],
        "def f():\n    return main([floors[0](tau), type(parser).__name__, record, os, result])",
        (),
    ),
    "what holds for the process": (
        [
            "import os, warnings, torch\nSECONDS = 3",
            "os.environ['MY_SECONDS'] = str(SECONDS); os.environ['RANK'] = '7'",
            "warnings.filterwarnings('ignore', message='mine')",
            "if SECONDS > 2:\n    os.environ['MY_IF'] = 'x'",
            "for letter in 'FG':\n    os.environ[f'MY_{letter}'] = letter",
            "get_ipython().run_line_magic('env', 'MY_ENV={SECONDS}')",
        ],
        """
        def f():
            ours = [one for one in warnings.filters if one[1] and one[1].pattern == 'mine']
            own = [os.environ[f"MY_{name}"] for name in ("SECONDS", "IF", "G", "ENV")]
            return [*own, len(ours)]
        """,
        (),
    ),
    "values that no statement makes again": (
        [
            "import torch, types\nx = torch.rand(2, dtype=torch.float64)",
            "c = types.SimpleNamespace(a=[print])\ndef g():\n    c.a[0] = len\ng()",
            "def g():\n    global many\n    many = [i, torch.ones(i)]\ni = 3\ng()\ni = 4",
            "early = [i, print]\ndel i",
        ],
        "def f():\n    return [x.tolist(), c.a[0]('ab'), many[0], many[1].tolist(), early[0]]",
        (),
    ),
    "what is shared stays shared, and what is equal apart": (
        [
            "class A:\n    pass\na = A()\nb = [a]\na = A()\nboth = {'a': a}",
            "plain = [1]; same = plain; inside = {'plain': plain, 'a': a}",
            "import torch\nt = torch.rand(3)\nview = t[1:]\nnet = torch.nn.Linear(1, 1)",
            "tied = [net.weight, net]",
            "calls = []\ndef two():\n    calls.append(1)\n    return [calls], [calls]",
            "left, right = two()\ndel calls, two",
        ],
        """
        def f():
            t.fill_(7)
            assert left[0] is right[0]
            apart = [b[0] is a, both["a"] is a, same is plain, inside["plain"] is plain]
            return [*apart, view.tolist(), tied[0] is net.weight, tied[1] is net]
        """,
        (),
    ),
    "closures, defaults and caches": (
        [
            "N = 2",
            "def make(n):\n    return lambda x, more=[n]: (x * n, more)",
            "g = make(N)\nM = 3\ndef h(x=M, *, y=[M]):\n    return [x, y]\nM = 4",
            "h.__defaults__ = (5,); h.mine = 'mine'",
            "import functools\n@functools.cache\ndef k(x=N):\n    return x\nk()",
        ],
        "def f():\n    return [g(1), h(), h.mine, k()]",
        (),
    ),
    "classes that use each other": (
        [
            "class Node:\n    def children(self):\n        return [Leaf(), Twig.size]",
            "class Leaf(Node):\n    size = 1",
            "class Twig(Leaf):\n    of = Node",
            "Twig.size = 2",
        ],
        "def f():\n    return [Node().children()[0].size, Node().children()[1], Twig.of is Node]",
        (),
    ),
    "methods, and what imports bind": (
        [
            "HIDDEN = 16\nclass Net:\n    def __init__(self, hidden=HIDDEN):\n"
            "        self.hidden = hidden\n    class Inner:\n        z = 1",
            "HIDDEN = 32; Net.Inner.z = 5",
            "from dataclasses import dataclass\nLR = 0.1\n@dataclass\nclass C:\n    lr: float = LR",
            "LR = 0.5; import math; old, math.pi = math.pi, 3\nfrom math import pi; math.pi = old",
        ],
        "def f():\n    return [Net().hidden, Net.Inner.z, C().lr, C.lr, pi]",
        (),
    ),
    "what follows from a rank's number, and what cannot leave": (
        [
            "import os, types\nworld = int(os.environ.get('WORLD_SIZE', 1))",
            "c = types.SimpleNamespace(ranks=int(os.environ.get('WORLD_SIZE', 1)))",
            "import threading\nlock = threading.Lock()\nwith lock:\n    x = [print, world]",
            "import pathlib\ntext = [pathlib.Path('pyproject.toml').read_bytes()[:5], print]",
            "numbers = (i for i in range(3))\nlines = types.SimpleNamespace(all=[*numbers])",
        ],
        "def f():\n    return [world, c.ranks, x[1], lines.all, text[0]]",
        (),
    ),
    "loggers and filters that were set again, and a name of Python's": (
        [
            "import logging, warnings\nlines = logging.getLogger('tests.app')",
            "lines.setLevel('DEBUG')",
            "lines.setLevel('INFO')\nfrom math import *",
            "lines.setLevel('DEBUG')",
            *(f"warnings.filterwarnings('{how}', 'mine')" for how in ("error", "ignore", "error")),
        ],
        """
        def f():
            first = next(one for one in warnings.filters if one[1] and one[1].pattern == "mine")
            return [lines.isEnabledFor(logging.DEBUG), first[0], pow(2, 3)]
        """,
        (),
    ),
    "a decorator that gives options, and names of the script's in between": (
        [
            "import functools\nfrom typing import Generic, TypeVar\nT = TypeVar('T')",
            "def configured(function):\n    @functools.wraps(function)\n"
            "    def inner(*args, **options):\n"
            "        return function(*args, **{'lr': 0.5, **options})\n    return inner",
            "class Stack(Generic[T]):\n    size = 4",
            "__version__, (record, rows) = '1.2', ({}, [print, 3])",
        ],
        """
        @configured
        def f(steps, name: float = 1.0, *, lr=0.1):
            return [steps, name, lr, rows[1], Stack.size, __version__]
        """,
        (3, "2.10"),
    ),
    "kinds of parameters": (
        [],
        """
        def f(a, b=2, *rest, flag=True, name='x', none=None, top=float('inf'), warm_up=1.5, **more):
            return [a, b, list(rest), flag, name, none, top > 9, warm_up, more]
        """,
        ([1, 2], 3, 4, "five"),
    ),
}


@pytest.mark.parametrize(("cells", "cell", "args"), CASES.values(), ids=CASES)
def test_script_returns_what_the_notebook_does(cells, cell, args, tmp_path):
    notebook = Notebook(*cells, cell)
    path = export(notebook["f"], tmp_path / "script.py", *args)
    assert result(path) == notebook["f"](*args)


CALLS = {
    "a partial, and more": ("functools.partial(train, 2)", "n=4, name='y'", [2, 4, "y"]),
    "a method": ("trainer.fit", "3", 1.5),
    "an enum, a path": ("train", "mode, path, Mode.SLOW", ["fast", "a/b", "slow"]),
    "a partial": ("functools.partial(train, 2, n=3)", "", [2, 3, "x"]),
    "an object": ("trainer", "4", 2.0),
    "a lambda": ("double", "4", 8),
    "a class": ("Trainer.make", "", ["Trainer"]),
    "a function with a name of Python's": ("apply", "math.pow", [8.0, 8]),
    "a list that is twice in another": ("first_of", "[[0, 0]] * 2", [[1, 0], [1, 0]]),
    "a path, a device, a dtype": (
        "train",
        "pathlib.Path('c'), torch.device('cpu'), torch.int8",
        ["c", "cpu", "torch.int8"],
    ),
}
FEW = [*CALLS][:3]
OF_CALLS = [
    pytest.param(*call, id=name, marks=[] if name in FEW else pytest.mark.slow)
    for name, call in CALLS.items()
]


@pytest.mark.parametrize(("function", "args", "expected"), OF_CALLS)
def test_what_can_be_called_and_given(function, args, expected, tmp_path):
    notebook = Notebook("""
        import enum, functools, math, pathlib
        import torch
        from dataclasses import dataclass

        class Mode(enum.Enum):
            FAST = "fast"
            SLOW = "slow"

        @dataclass
        class Trainer:
            lr: float
            @classmethod
            def make(cls): return [cls.__name__]
            def fit(self, n): return self.lr * n
            def __call__(self, n): return self.fit(n)

        mode, path, trainer, double = Mode.FAST, pathlib.Path("a/b"), Trainer(0.1), lambda n: 2 * n
        trainer.lr = 0.5

        def first_of(rows):
            rows[0][0] = 1
            return rows

        def apply(power): return [power(2, 3), pow(2, 3)]

        def plain(value):
            if isinstance(value, enum.Enum): return value.value
            return value if isinstance(value, int | float | str) else str(value)

        def train(lr, n=1, name="x"): return [plain(lr), plain(n), plain(name)]
    """)
    call = f"(lambda *args, **more: (args, more))({function}, {args})"
    (called, *given), more = eval(call, dict(notebook.values))
    assert result(export(called, tmp_path / "s.py", *given, **more)) == expected


DIST_UTILS = [f"dist_utils/{name}.py" for name in ("__init__", "joining", "records")]
FILES = {
    "mine.py": "import theirs\nfrom course_utils import pick\ndef work(n): return theirs.K * n",
    "theirs.py": "import os\nK = int(os.environ.get('MY_K', 2))",
    "package/__init__.py": "",
    "package/part/__init__.py": "from .. import deep",
    "package/old.py": "print 'of Python 2'",
    "package/deep.py": "def where():\n    from course_utils import pick as take\n    return take()",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The notebook's folder, with modules."""
    monkeypatch.syspath_prepend(tmp_path / "notebook")
    yield write(tmp_path / "notebook", FILES)
    for name in [
        name for name in sys.modules if name.split(".")[0] in ("mine", "theirs", "package")
    ]:
        del sys.modules[name]


def test_modules_beside_the_notebook_lie_beside_the_script(here, tmp_path):
    notebook = Notebook("""
        import os
        os.environ["MY_K"] = "5"  # it is read as the module is imported
        import mine
        import package.part

        def f(n):
            return [mine.work(n), package.part.deep.where().type]

        def work(n):
            return "another"
    """)
    path = export(notebook["f"], tmp_path / "out" / "s.py", 3, jobs=("kubernetes",))
    assert result(path) == [15, "cpu"]
    assert re.search(r"'MY_K', 2\)\)\n +END_OF_FILE\n", path.with_suffix(".yaml").read_text())
    assert result(export(notebook["mine"].work, tmp_path / "out" / "t.py", 4)) == 20
    copied = {one.relative_to(path.parent).as_posix() for one in path.parent.rglob("*.py")}
    assert copied == {"s.py", "t.py", *DIST_UTILS, *FILES}
    with pytest.raises(CourseError, match=r"mine\.py is there already"):  # it is another file here
        export(notebook["f"], here / "s.py", 3)


def test_a_function_that_joins_the_group_itself(tmp_path):
    notebook = Notebook("""
        import torch.distributed as dist

        def f():
            def inner():
                return 1
            dist.init_process_group("gloo")
            assert dist.get_world_size() == inner()
            dist.destroy_process_group()
            print("result: 5")

        from torch.distributed import init_process_group as init

        def by_another_name():
            init("gloo")
            return [dist.get_world_size()]

        def setup():
            assert not dist.is_initialized()
            return 6
    """)
    assert result(export(notebook["by_another_name"], tmp_path / "h.py")) == [1]
    assert result(export(notebook["f"], tmp_path / "f.py")) == 5
    assert result(export(notebook["setup"], tmp_path / "g.py", init_group=False)) == 6


def test_options_of_the_command_line(tmp_path):
    notebook = Notebook("""
        def f(steps, lr=0.1, *, warm_up=2, name="a", shuffle=True, device='x'):
            return [steps, lr, warm_up, name, shuffle, device]
    """)
    path = export(notebook["f"], tmp_path / "s.py", 10, 1, name="b")
    assert result(path) == [10, 1.0, 2, "b", True, "x"]
    options = ["--steps=3", "--lr=1e-3", "--warm-up=0", "--no-shuffle", "--device=cpu"]
    assert result(path, *options, "--name", "c d") == [3, 0.001, 0, "c d", False, "x"]


def test_the_courses_own(tmp_path):
    notebook = Notebook(
        """
        import torch
        from course_utils import pick, report as log, span
        from course_utils.lessons import data, models as nets
        from course_utils.lessons.models import mlp
        """,
        "numbers = data.digits()",
        """
        def f(digits, dtype):
            import os; from course_utils.lessons.data import digits as load

            assert len(load().train) == len(digits.train)
            with span("forward"):
                log(loss=torch.tensor(1.5))
            span("all-reduce", lane="communication").start().stop()
            log(loss=float("nan"))
            torch.testing.assert_close(nets.mlp(8).state_dict(), mlp(8).state_dict())
            return [str(pick()), len(digits.train), str(dtype)]
        """,
        "dtype = torch.int8",
    )
    given = notebook["numbers"], notebook["dtype"]
    path = export(notebook["f"], tmp_path / "s.py", *given, device=torch.device("cpu"))
    assert result(path) == ["cpu", 1437, "torch.int8"]
    copied = {one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*.py")}
    of_lessons = {f"dist_utils/lessons/{name}.py" for name in ("__init__", "data", "models")}
    assert copied == {"s.py", *DIST_UTILS} | of_lessons
    assert [(one["rank"], one["step"]) for one in metrics(tmp_path, 0)] == [(0, 0), (0, 1)]


def test_the_scripts_of_the_notebooks_are_clean(tmp_path):
    """Ruff finds nothing in them, nor in their layout; they do not speak of the course."""
    six = Notebook(*cells_of("06", "RANKS = ", "def train(digits"), "digits = data.digits()")
    export(six["train"], tmp_path / "train.py", six["digits"], 30, ranks=2)
    export(training()["resume"], tmp_path / "resume.py", 100, ranks=16, nodes=2, timeout=60)
    # E501: in the docstring a command is one line, to be copied.
    check = ["check", "--select", "E,F,I,W,B,UP,SIM,RUF,PIE,C4,PT,RET", "--ignore", "E501"]
    for words in (check, ["format", "--diff"]):
        command = ["-m", "ruff", *words, "--isolated", "--line-length", "100", "."]
        python(*command, cwd=tmp_path)
    for file in tmp_path.rglob("*.py"):
        assert "course" not in file.read_text().lower()


REFUSED = {
    "a method that was put there": (
        "class A:\n    pass\nA.half = lambda self: 1",
        "A().half()",
        "A, which f uses, .*: A.half is not what its statement makes",
    ),
    "a function whose closure has changed": (
        "def make(n=[0]):\n    return lambda: n\ng = make()\ng().append(1)",
        "g()",
        "g, which f uses, .*: g's variable n is not what its statement makes",
    ),
    "a method that was replaced": (
        "class A:\n    def x(self):\n        return 1\ndef twice(g):\n    def x(self):\n"
        "        return 2 * g(self)\n    x.__qualname__ = g.__qualname__\n    return x\n"
        "A.x = twice(A.x)",
        "A().x()",
        "A, which f uses, .*: A.x.__code__ is not what its statement makes",
    ),
    "a metaclass of before": (
        "class M(type):\n    pass\nclass A(metaclass=M):\n    pass\nclass M(type):\n    n = 2",
        "A()",
        "A, which f uses, .*: A.__class__ is not what its statement makes",
    ),
    "a function of a cell that has changed": (
        "def make():\n    return lambda: 1\ng = make()\ndef make():\n    return lambda: 2",
        "g()",
        "g, which f uses, .*: g.__code__ is not what its statement makes",
    ),
    "a lock": (
        "import threading\nlock = threading.Lock()",
        "lock",
        "lock, which f uses, .*: it cannot be saved .* make it in the function",
    ),
    "a tool": (
        "from course_utils import LivePlot, discover",
        "discover()",
        "discover.*a tool of this course.*take it",
    ),
    "a definition that no cell has": (
        "exec('def g():\\n    return 1')",
        "g()",
        "g, which f uses, .*: no statement at the top of a cell makes it",
    ),
    "a line of the notebook's": (
        "",
        "get_ipython().system('ls')",
        "with % or ! runs in a notebook",
    ),
}


@pytest.mark.parametrize(("cell", "line", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_leave_is_named(cell, line, words, tmp_path):
    notebook = Notebook(cell, f"def f():\n    {line}")
    with pytest.raises(CourseError, match=f"(?s){words}"):
        export(notebook["f"], tmp_path / "s.py")
    assert not list(tmp_path.iterdir())


def test_calls_that_cannot_be_written(tmp_path):
    notebook = Notebook(
        "def f(a):\n    return a",
        "space = {}\nexec('def f(): pass', space)",
        "class A:\n    double = lambda self: 2",
        "a = A()",
    )
    wrong = {
        r"no name for <built-in method .*write name = … at the top": (([].append,), {}),
        r"f\(a\) cannot be called like this: missing a required argument: 'a'": ((), {}),
        r"ranks=10, nodes=4: .*give ranks=8": ((1,), {"ranks": 10, "nodes": 4}),
        r"'pbs' is none of slurm, kubernetes": ((1,), {"jobs": ("pbs",)}),
    }
    for words, (args, more) in wrong.items():
        with pytest.raises(CourseError, match=words):
            export(notebook["f"], tmp_path / "s.py", *args, **more)
    with pytest.raises(CourseError, match=r"imports another random\.py: give it another name"):
        export(notebook["f"], tmp_path / "random.py", 1)
    with pytest.raises(CourseError, match="no name for <function f "):  # not the cell's f
        export(notebook["space"]["f"], tmp_path / "s.py")
    with pytest.raises(CourseError, match=r"no name for <bound method A\.<lambda> "):
        export(notebook["a"].double, tmp_path / "s.py")


def test_files_of_the_notebook_stay_as_they_are(tmp_path):
    """Statements run once more: these empty the file of a memmap, as zarr's do, and replace one."""
    file = tmp_path / "m.bin"
    notebook = Notebook(
        f"import os, numpy as np\nrows = np.memmap({str(file)!r}, 'i4', 'w+', shape=(4,))",
        "rows[:] = 3\nrows.flush()",
        f"""
        def saved(n):
            open({str(tmp_path / "new")!r}, 'w').write(str(n))
            os.replace({str(tmp_path / "new")!r}, {str(tmp_path / "count")!r})
            return [n, print]
        count = 1
        last = saved(count)
        count = 2
        """,
        "def f(): return [*rows.tolist(), last[0]]",
    )
    assert result(export(notebook["f"], tmp_path / "s.py")) == [3, 3, 3, 3, 1]
    assert notebook["rows"].tolist() == [3, 3, 3, 3]
    assert (tmp_path / "count").read_text() == "1"


def test_what_a_function_set_for_the_process(tmp_path):
    notebook = Notebook("""
        import torch
        def f():
            now = torch.get_default_dtype(), torch.get_float32_matmul_precision()
            return [*map(str, now), torch.are_deterministic_algorithms_enabled()]
    """)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(True)
    try:
        path = export(notebook["f"], tmp_path / "s.py")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
    assert result(path) == ["torch.float64", "high", True]


@pytest.mark.parametrize("mine", ["train.py", "dist_utils/joining.py", "train.sbatch"])
def test_a_file_of_somebody_else_stays(mine, tmp_path):
    notebook = Notebook("def f():\n    return 1")
    for _ in range(2):  # what was exported may be exported again
        export(notebook["f"], tmp_path / "train.py", jobs=("slurm",))
    (tmp_path / mine).write_text("print('mine')\n")
    with pytest.raises(CourseError, match="is there already"):
        export(notebook["f"], tmp_path / "train.py", jobs=("slurm",))
    assert (tmp_path / mine).read_text() == "print('mine')\n"


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    notebook = Notebook("N = 1\ndef f():\n    return N")
    path = export(notebook["f"], tmp_path / "s.py")
    old = {file: file.read_text() for file in tmp_path.rglob("*.py")}
    notebook.run("N = 2")

    def full(file, data):
        file.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            export(notebook["f"], path)
    assert {file: file.read_text() for file in tmp_path.rglob("*.*")} == old
    assert result(export(notebook["f"], path)) == 2


def test_a_trainjob_says_what_it_cannot_carry(tmp_path):
    notebook = Notebook("import torch\nx = torch.rand(2)\ndef f():\n    return x.tolist()")
    with pytest.raises(CourseError, match=r"takes text .* not s\.values\.pt: leave \"kubernetes\""):
        export(notebook["f"], tmp_path / "s.py", jobs=("kubernetes",))
    assert not list(tmp_path.iterdir())
    path = export(notebook["f"], tmp_path / "s.py", jobs=("slurm",))
    assert result(path) == notebook["f"]()
