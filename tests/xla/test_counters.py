"""`xla.counters()` counts what torch_xla does, starts at zero, and starts nothing."""

import os
import subprocess
import sys

import pytest

from course_utils.xla.counters import Counters, counters


def test_difference_and_line():
    before, after = Counters(1, 0.5, 2, 3, 4), Counters(3, 0.75, 3, 3, 5)
    assert after - before == Counters(2, 0.25, 1, 0, 1)
    assert str(after - before) == "2 compiles (0.25 s), 1 execution, 0 uploads, 1 download"
    assert str(Counters()) == "0 compiles, 0 executions, 0 uploads, 0 downloads"
    with pytest.raises(TypeError):
        after - 1


def fresh(code, **environment):
    """What `code` prints in a process of its own, where nothing of XLA was touched yet."""
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PJRT_DEVICE": "CPU"} | environment, text=True, timeout=120,
        stdout=subprocess.PIPE, check=True,
    )
    return found.stdout.splitlines()


def test_zeros_before_torch_xla_is_imported():
    code = "import sys; from course_utils.xla.counters import *; print(counters(), 'torch_xla' in sys.modules)"
    assert fresh(code) == ["0 compiles, 0 executions, 0 uploads, 0 downloads False"]


LOOK = """
import torch, torch_xla
from course_utils.xla.counters import Counters, counters

assert counters() == Counters()
print(torch_xla._XLAC._xla_runtime_is_initialized())
"""


def test_looking_starts_nothing():
    pytest.importorskip("torch_xla")
    assert fresh(LOOK) == ["False"]


STEPS = """
import torch, torch_xla
from course_utils.xla.counters import counters

device = torch_xla.device()
torch.ones(1).to(device) * 2  # the scalar is a tensor that is copied once
torch_xla.sync()
for size in (4, 4, 8):
    before = counters()
    x = torch.ones(size).to(device)
    y = x * 2 + 1
    torch_xla.sync()
    found = counters() - before
    print(found.compiles, found.compile_seconds > 0, found.executions, found.uploads, found.downloads)
before = counters()
y.cpu()
found = counters() - before
print(found.compiles, found.executions, found.downloads)
for size in [8] * 50:
    before = counters()
    y = y * 2 + 1
    torch_xla.sync()
    assert (counters() - before).executions == 1  # seen at once, though `sync` does not wait
"""


def test_counts_of_one_device():
    pytest.importorskip("torch_xla")
    assert fresh(STEPS) == ["1 True 1 1 0", "0 False 1 1 0", "1 True 1 1 0", "0 0 1"]


SPMD = """
import numpy, torch, torch_xla
import torch_xla.distributed.spmd as xs, torch_xla.runtime as xr
from course_utils.xla.counters import counters

xr.use_spmd()
x = torch.ones(8, 4).to(torch_xla.device())
xs.mark_sharding(x, xs.Mesh(numpy.arange(4), (4,), ("data",)), ("data", None))
before = counters()
y = x * 2
torch_xla.sync()
found = counters() - before
print(found.compiles, found.executions)
"""


def test_counts_of_spmd():
    pytest.importorskip("torch_xla")
    assert fresh(SPMD, CPU_NUM_DEVICES="4") == ["1 1"]


def test_counts_here():
    assert isinstance(counters(), Counters)
