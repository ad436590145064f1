"""`xla.counters()` counts what torch_xla does, and starts nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch_xla")

from course_utils.xla import Counters


def test_difference_and_line() -> None:
    assert Counters(3, 3, 3, 5) - Counters(1, 2, 3, 4) == Counters(2, 1, 0, 1)
    assert str(Counters(2, 1, 0, 1)) == "2 compiles, 1 execution, 0 uploads, 1 download"


STEPS = """
import torch, torch_xla
from course_utils.xla import Counters, counters

assert counters() == Counters()
assert not torch_xla._XLAC._xla_runtime_is_initialized()
device = torch_xla.device()
torch.ones(1).to(device) * 2  # the scalar is a tensor that is copied once
torch_xla.sync()
for size, compiles in ((4, 1), (4, 0), (8, 1)):
    before = counters()
    x = torch.ones(size).to(device)
    y = x * 2 + 1
    torch_xla.sync()
    assert counters() - before == Counters(compiles, 1, 1, 0), counters() - before
before = counters()
y.cpu()
assert counters() - before == Counters(downloads=1)
for _ in range(50):
    before = counters()
    y = y * 2 + 1
    torch_xla.sync()
    assert (counters() - before).executions == 1  # seen at once, though `sync` does not wait
"""
SPMD = """
import numpy, torch, torch_xla
import torch_xla.distributed.spmd as xs, torch_xla.runtime as xr
from course_utils.xla import counters

xr.use_spmd()
x = torch.ones(8, 4).to(torch_xla.device())
xs.mark_sharding(x, xs.Mesh(numpy.arange(4), (4,), ("data",)), ("data", None))
before = counters()
y = x * 2
torch_xla.sync()
found = counters() - before
assert (found.compiles, found.executions) == (1, 1), found
"""


@pytest.mark.parametrize(("code", "devices"), [(STEPS, "1"), (SPMD, "4")], ids=["one device", "SPMD"])
def test_counts(code: str, devices: str) -> None:
    """In a process of its own, where nothing of XLA was touched yet."""
    env = os.environ | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": devices}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
