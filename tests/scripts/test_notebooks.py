"""What the notebooks train, exported and started by torchrun, computes what a launch does, bit for
bit.
"""

import sys

import pytest

from course_utils import export, launch
from tests.kernel import posix
from tests.python import run
from tests.scripts.notebook import Notebook, cells_of, metrics, outside

pytestmark = [posix, pytest.mark.slow]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
DIGITS = "digits = data.digits()"
DIGEST = """
import hashlib
import torch
from torch.utils._pytree import tree_map

def plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value

def digest(function, *args, **more):
    result = tree_map(plain, function(*args, **more))
    return hashlib.sha256(repr(result).encode()).hexdigest()
"""
SIX = ("RANKS = ", "def train(digits", "import hashlib", "def by_hand", "def fit(", "def timed_all")
NINE = ("RANKS = ", "def sharded(", "def gpt(")
TWELVE = ("RANKS = ", "import inspect", "def build(", "THEIRS = ")
NINETEEN = ("HOSTS, EACH", "def network(", "def accident(", "def train(")
SCHEDULES = """
from course_utils import schedules
gpipe = schedules.make("GPipe", ranks=2, micro_batches=MICROS)
one = schedules.make("1F1B", ranks=2, micro_batches=MICROS)
"""
CASES = {  # notebook, its cells, one of our own, the call
    "DDP": ("06", SIX[:2], DIGITS, "train, digits, 2"),
    "by hand": ("06", SIX[:5], DIGITS, "fit, by_hand, digits, steps=3"),
    "traffic and spans": ("06", (*SIX, "def few_steps("), DIGITS, "few_steps, 1"),
    "FSDP2": ("09", NINE, "text = data.text()", "trained, text, 3"),
    "a pipeline by hand": ("12", TWELVE[:3], SCHEDULES, "one_step, gpipe, x, y, 0"),
    "torch's pipeline": ("12", TWELVE, SCHEDULES, "with_torch, one, x, y, 0"),
    "a deep model": (
        "19",
        ("HOSTS, EACH", "def network(", "def accident(", "def train("),
        "",
        "train, 3",
    ),
}


def cut(cell: str) -> str:
    """Its definitions, on two ranks, without the launches that stand below them."""
    cell = cell.replace("discover().ranks", "2")
    for start in ("\n\n\nddp = ", "\n\n\ndef last_step"):
        cell = cell.partition(start)[0]
    return cell


@pytest.mark.parametrize(("number", "starts", "own", "call"), CASES.values(), ids=CASES)
def test_torchrun_gives_what_a_launch_gives(number, starts, own, call, tmp_path):
    notebook = Notebook(*map(cut, cells_of(number, *starts)), own, DIGEST)
    on_two = {"ranks": 2, "device": "cpu"}
    args, more = eval(f"(lambda *args, **more: (args, more))({call})", dict(notebook.values))
    script = export(notebook["digest"], tmp_path / "script.py", *args, **more, **on_two)
    launched = launch(notebook["digest"], *args, **more, **on_two)
    done = run(*TORCHRUN, script, cwd=tmp_path, env=outside(OMP_NUM_THREADS="1"))
    assert f"result: {launched.results[0]}" in done.stdout
    for rank in range(2):
        ours = [one for one in launched.metrics if one["rank"] == rank]
        theirs = metrics(tmp_path, rank) if ours else []
        for records in (ours, theirs):
            for record in records:
                del record["time"]
        assert ours == theirs
