"""The script gives what the notebook gives, alone; what cannot leave is named in words."""

import ast
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_utils import CourseError, export
from tests.python import python
from tests.scripts.notebook import Notebook, cells_of, metrics, outside, training


def result(script: Path, *options: str):
    """What the function of a script returns."""
    done = python(script, *options, cwd=script.parent, env=outside())
    return ast.literal_eval(done.stdout.rpartition("result: ")[2])


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
    "several names in one statement, constants changed since": (
        [
            "A, B = PAIR = 2, 'two'; C = 4",
            "total, options = 0, {}",
            "for i in range(4):\n    total += i",
            "options['a'] = [1, 2]",
        ],
        "def f():\n    return [A, B, C, PAIR, total, i, options]",
        (),
    ),
    "a module and parts of it": (
        ["import xml.dom.minidom", "import xml.dom", "import xml"],
        "def f():\n    return xml.dom.minidom.Node.ELEMENT_NODE",
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


def test_a_cell_that_ran_again_is_written_once(tmp_path):
    cell = "try:\n    import tomllib\nexcept ImportError:\n    tomllib = None"
    notebook = Notebook(cell, cell, "def f():\n    return tomllib is None")
    path = export(notebook["f"], tmp_path / "script.py")
    assert path.read_text().count(cell) == 1


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
    assert {one.stem for one in tmp_path.glob("*.py")} == {"s", "data", "dist_utils", "models"}
    assert [(one["rank"], one["step"]) for one in metrics(tmp_path, 0)] == [(0, 0), (0, 1)]


def test_the_scripts_of_the_notebooks_are_clean(tmp_path):
    """Ruff finds nothing in them, nor in their layout; they do not speak of the course."""
    six = Notebook(*cells_of("06", "RANKS = ", "def train(digits"), "digits = data.digits()")
    export(six["train"], tmp_path / "train.py", six["digits"], 30, ranks=2)
    export(training()["resume"], tmp_path / "resume.py", 100, ranks=16, nodes=2, timeout=60)
    # E501: in the docstring a command is one line, to be copied.
    check = ["check", "--select", "E,F,W,B,UP,SIM,RUF,PIE,C4,PT,RET", "--ignore", "E501"]
    for words in (check, ["format", "--diff"]):
        command = ["-m", "ruff", *words, "--isolated", "--line-length", "100", "."]
        python(*command, cwd=tmp_path)
    for file in tmp_path.iterdir():
        assert not file.is_file() or "course" not in file.read_text().lower()


REFUSED = {
    "a tensor": (
        "import torch\nx = torch.rand(2)",
        "x.sum()",
        "x, which f uses, .* kernel has that Tensor.*in the f",
    ),
    "a list that grew": (
        "found = []\nfound.append(print)",
        "len(found)",
        "found, which f uses, .* kernel has that list",
    ),
    "made of itself": (
        "import math\nx = math.floor\nx = [x]",
        "x[0](1)",
        "x, which f uses.*that list",
    ),
    "a tool": (
        "from course_utils import LivePlot, discover",
        "discover()",
        "discover.*a tool of this course.*take it",
    ),
    "of a loop": (
        "for step in [object()]:\n    pass",
        "print(step)",
        "step.*no cell that ran makes it by def",
    ),
    "a name of the script": ("def main():\n    pass", "main()", "main.*another"),
}


@pytest.mark.parametrize(("cell", "line", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_leave_is_named(cell, line, words, tmp_path):
    notebook = Notebook(cell, f"def f():\n    {line}")
    with pytest.raises(CourseError, match=f"(?s){words}"):
        export(notebook["f"], tmp_path / "s.py")
    assert not list(tmp_path.iterdir())


def test_arguments_that_cannot_leave(tmp_path):
    notebook = Notebook("import torch\nx = torch.rand(2)", "def f(a):\n    return a")
    with pytest.raises(CourseError, match=r"x, which the call uses, .*that Tensor"):
        export(notebook["f"], tmp_path / "s.py", notebook["x"])
    with pytest.raises(CourseError, match=r"no name for <object .*write name = … in a cell"):
        export(notebook["f"], tmp_path / "s.py", object())


@pytest.mark.parametrize("mine", ["train.py", "dist_utils.py", "train.sbatch"])
def test_a_file_of_somebody_else_stays(mine, tmp_path):
    notebook = Notebook("def f():\n    return 1")
    for _ in range(2):  # what was exported may be exported again
        export(notebook["f"], tmp_path / "train.py", jobs=("slurm",))
    (tmp_path / mine).write_text("print('mine')\n")
    with pytest.raises(CourseError, match="is there already"):
        export(notebook["f"], tmp_path / "train.py", jobs=("slurm",))
    assert (tmp_path / mine).read_text() == "print('mine')\n"


@pytest.mark.parametrize(
    ("option", "count", "kind", "took"),
    [
        (None, 1, "mps", "cpu"),
        (None, 2, "cuda", "cuda:1"),
        ("cpu", 2, "cuda", "cpu"),
        (None, 1, "cuda", "has 1 of the 2 cuda devices .*--device cpu"),
        ("cuda", 0, "cuda", "has 0 of the 2 cuda"),  # a host whose driver is broken
    ],
)
def test_a_rank_takes_a_device_of_its_own_or_raises(option, count, kind, took, gpus, monkeypatch):
    from course_utils import dist_utils

    gpus(count, kind)
    joined = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", joined.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: joined.append(backend))
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    if "has" in took:
        with pytest.raises(RuntimeError, match=took):
            dist_utils.init_distributed(option)
        assert joined == []
    else:
        dist_utils.init_distributed(option)
        assert str(dist_utils.pick()) == took
        assert joined == (["gloo"] if took == "cpu" else [1, "nccl"])
