"""An exported script's process is what a rank of a launch is: it may join once more, and leave."""

import os
import sys

import pytest

from course_utils import export, launch
from tests.files import write
from tests.kernel import posix
from tests.python import run
from tests.scripts.notebook import Notebook, outside

pytestmark = posix
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
ON_TWO = {"ranks": 2, "device": "cpu"}
LIBRARY = """
import torch
import torch.distributed as dist

def joined(**asked):
    dist.init_process_group("gloo", **asked)
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total)
"""
CELL = """
import os, sys, warnings
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import their_library
from course_utils import report

def refused(function, *args, **asked):
    try:
        function(*args, **asked)
    except Exception as error:
        return str(error)

def train(end):
    told = [os.environ[name] for name in ("ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES")]
    if dist.is_initialized():
        told.append(refused(dist.init_process_group, rank=5, world_size=8))
    told += [refused(report, 3), refused(report, loss=None)]
    warnings.simplefilter("error")
    report(torch.tensor(3), loss=torch.ones((), requires_grad=True), right=True)

    sizes = []
    for _ in range(3):
        sizes.append(their_library.joined())
        model = DDP(nn.Linear(2, 1))
        model(torch.ones(1, 2)).sum().backward()
        dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))
        dist.destroy_process_group()
        globals()["kept"] = model
    os.environ["MASTER_PORT"] = str(29500 + os.getppid() % 999)
    for _ in range(2):
        sizes.append(their_library.joined())
        dist.destroy_process_group()
    if end:
        sys.exit(end)
    return told, sizes
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """`script(name, *args, **options)`: that function of the cell, exported."""
    write(tmp_path, {"their_library.py": LIBRARY})
    monkeypatch.syspath_prepend(tmp_path)
    notebook = Notebook(CELL)
    yield lambda *args, **more: export(
        notebook["train"], tmp_path / "out" / "train.py", *args, **ON_TWO, **more
    )
    sys.modules.pop("their_library", None)


def started(script, *command):
    return run(*command, script, cwd=script.parent, env=outside(OMP_NUM_THREADS="1"), timeout=60)


def test_it_joins_and_leaves_as_in_a_launch(script):
    told, sizes = launch(Notebook(CELL)["train"], 0, **ON_TWO).results[0]
    assert sizes == [2] * 5
    said = f"result: {([words.replace('launch', 'init_distributed') for words in told], sizes)}"
    path = script(0)
    for how in ("--standalone", f"--master-port={20000 + os.getpid() % 9999}"):
        assert said in started(path, *TORCHRUN, how).stdout


def test_the_function_may_join_first_and_exit(script):
    with pytest.raises(AssertionError, match=r"exitcode *: 3"):
        started(script(3, init_group=False), *TORCHRUN, "--standalone")


FORKS = """
import torch.multiprocessing as mp
import torch.distributed as dist

class Joins:  # as a callable object, which does not say what it calls
    def __call__(self):
        dist.init_process_group("gloo")

def train():
    process = mp.get_context("fork").Process(target=Joins())
    process.start()
    process.join()
"""


def test_a_process_that_it_forks_and_that_joins_fails_it(tmp_path):
    path = export(Notebook(FORKS)["train"], tmp_path / "train.py", ranks=1, device="cpu")
    with pytest.raises(AssertionError, match=r"leave_distributed(.*\n)+.*cannot start ranks"):
        started(path, sys.executable)
