"""`xla.launch` on virtual cores: what comes back, by core; SPMD; and every way to fail, in words, leaving nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytest.importorskip("torch_xla")

import torch
import torch_xla
import torch_xla.core.xla_model as xm

from course_utils import CourseError, LivePlot, RankError, pick, report, xla


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    deadline = time.monotonic() + 60
    while (left := [p for p in psutil.Process().children(recursive=True) if p.num_threads() > 4]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not left, f"processes of cores were left behind: {left}"


def ordinals() -> tuple[int, int]:
    import torch_xla.runtime as xr

    return xr.global_ordinal(), xr.world_size()


@pytest.mark.parametrize(("cores", "there"), [(1, 1), (3, 3), (None, 8)])
def test_every_core_has_its_number_and_its_device(cores: int | None, there: int) -> None:
    run = xla.launch(lambda: (*ordinals(), str(pick())), cores=cores)
    assert run.results == [(core, there, f"xla:{core}") for core in range(there)]
    assert (run.ranks, run.unit) == (there, "core")
    assert f"{there} core" in repr(run)


def test_arguments_and_closures_travel_by_value_again_and_again() -> None:
    offset = [10]
    assert (torch.ones(2).to(torch_xla.device()) + 1).tolist() == [2, 2]  # the kernel's own runtime does not matter

    def add(x: int, *, y: int) -> int:
        offset[0] += ordinals()[0]  # a list of its own on every core, though cores share a process
        return offset[0] + x + y

    assert [xla.launch(add, 1, y=2, cores=3).results for _ in range(2)] == [[13, 14, 15]] * 2
    assert offset == [10]


def test_prints_and_metrics_by_core(capsys: pytest.CaptureFixture) -> None:
    def work() -> None:
        core, _ = ordinals()
        print("I am", core)
        print("a warning", file=sys.stderr)
        for step in range(3):
            report(step, loss=core + step / 10)

    plot = LivePlot("loss")
    run = xla.launch(work, cores=3, live=plot)
    assert run.output == [f"I am {core}\na warning\n" for core in range(3)]
    printed = capsys.readouterr().out
    assert all(f"[core {core}] I am {core}" in printed for core in range(3))
    assert run.column("loss", rank=2) == [2.0, 2.1, 2.2]
    assert plot.data["loss"][1] == ([0, 1, 2], [1.0, 1.1, 1.2])


def test_spmd_is_one_program_with_all_devices() -> None:
    def program() -> tuple:
        import numpy
        import torch_xla.distributed.spmd as xs
        import torch_xla.runtime as xr

        devices = xr.global_runtime_device_count()
        x = torch.arange(16.0).reshape(8, 2).to(torch_xla.device())
        xs.mark_sharding(x, xs.Mesh(numpy.arange(devices), (devices,), ("data",)), ("data", None))
        print("once")
        return xr.is_spmd(), devices, "devices=[8,1]" in torch_xla._XLAC._get_xla_sharding_spec(x), x.sum(0).cpu()

    run = xla.launch(program, cores=8, spmd=True)
    spmd, devices, sharded, total = run.results[0]
    assert (spmd, devices, sharded, total.tolist()) == (True, 8, True, [56, 64])
    assert (run.output, run.unit, len(run.results)) == (["once\n"], "program", 1)


@pytest.mark.parametrize("spmd", [False, True])
def test_what_is_left_on_the_device_comes_back_on_the_cpu(spmd: bool) -> None:
    def work(given: torch.Tensor) -> dict:
        layer = torch.nn.Linear(2, 1).to(pick())
        half = torch.ones(2, dtype=torch.bfloat16).to(pick())
        return {"given": str(given.device), "nested": [(half * 3, layer.weight)], "module": layer}

    for found in xla.launch(work, torch.ones(1).to(torch_xla.device()), cores=3, spmd=spmd).results:
        ((half, weight),) = found["nested"]
        assert (found["given"], half.device.type, half.dtype, half.tolist()) == ("cpu", "cpu", torch.bfloat16, [3, 3])
        assert weight.device.type == "cpu"
        assert found["module"].weight is weight, "what is one tensor there is one here"
        assert found["module"](torch.ones(2)).requires_grad


def meet() -> float:
    return xm.all_reduce(xm.REDUCE_SUM, torch.ones(1).to(pick())).item()


def on(core: int, do: object, others: object = meet) -> object:
    """A function in which one core does something else than all others."""
    return lambda: do() if ordinals()[0] == core else others()


def bad_shard() -> None:
    raise ValueError("bad shard")


FAULTS = {
    "raises": (on(2, bad_shard), {}, (2, "ValueError"),
               ["core 2 of 4 raised ValueError: bad shard", 'raise ValueError("bad shard")']),
    "exits": (on(1, lambda: sys.exit(3)), {}, (1, "SystemExit"), ["core 1 of 4 called sys.exit(3)"]),
    "is killed": (on(1, lambda: os.kill(os.getpid(), signal.SIGKILL)), {}, (None, "died"),
                  ["the process of the 4 cores", "was killed (SIGKILL)"]),
    "ends": (on(1, lambda: os._exit(4)), {}, (None, "died"), ["the process of the 4 cores", "exit code 4"]),
    "crashes": (on(2, lambda: ctypes.string_at(0)), {}, (None, "died"),
                ["the process of the 4 cores crashed (SIGSEGV"]),
    "skips": (on(3, lambda: None), {"time_limit": 3}, (None, "TimeLimit"),
              ["cores 0, 1, 2 of 4 had not finished after the time limit of 3 s", "wait for the value of a tensor here",
               "core 3 had returned: a collective needs every core"]),
    "is late": (on(0, lambda: time.sleep(60)), {}, (None, "Stuck"),
                ["3 of 4 cores reached a collective", "cores 1, 2, 3 wait for the value of a tensor here",
                 "core 0 is here", "time.sleep(60)"]),
    "returns a generator": (lambda: (i for i in range(3)), {}, (None, ""), ["cannot be sent back to the notebook"]),
    "SPMD raises": (lambda: 1 / 0, {"spmd": True}, (0, ""), ["the SPMD program raised ZeroDivisionError"]),
    "SPMD ends": (lambda: os._exit(4), {"spmd": True}, (0, ""), ["the SPMD program ended with exit code 4"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str) -> None:
    function, options, (rank, cause), words = FAULTS[name]
    with pytest.raises(RankError) as caught:
        xla.launch(function, **{"cores": 4, "time_limit": 600, "show": False} | options)
    for word in words:
        assert word in str(caught.value)
    if cause not in ("", "died"):
        assert (caught.value.rank, caught.value.cause) == (rank, cause)
    if cause == "died":
        assert caught.value.rank is None


def test_too_many_cores_start_nothing() -> None:
    with pytest.raises(CourseError, match="cores=65: there can be 1 to 64"):
        xla.launch(ordinals, cores=65)


BACKWARD = """
from course_utils import xla
xla.setup()
import torch, torch_xla
for device in ("cpu", torch_xla.device()):  # without XLA's devices in autograd's first backward, XLA never had one
    weight = torch.ones(2, device=device, requires_grad=True)
    (weight * 3).sum().backward()
    assert weight.grad.tolist() == [3, 3]
"""
CHIPS = """
import multiprocessing as mp, os, pickle
from course_utils.xla import core
from course_utils.ranks.report import Task
from course_utils.ranks.payload import packed
def work():
    import torch_xla.runtime as xr
    print("hello")
    return xr.global_ordinal(), xr.world_size(), os.getpid()
os.environ |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}
ours, theirs = mp.Pipe()
core.share(Task(packed(work, (), {}), {}, {}, ".", "xla", core.REPLICAS, 1, None, 0.0), theirs)
core.chips()
kinds = {}
while ours.poll(1):
    rank, kind, *values = ours.recv()
    assert rank == 0
    kinds.setdefault(kind, []).extend(values)
result = pickle.loads(kinds["result"][0])
assert result[:2] == (0, 1), kinds
assert result[2] != os.getpid(), "torch_xla.launch starts processes"
assert b"".join(kinds["output"]) == b"hello\\n"
"""


@pytest.mark.parametrize("code", [BACKWARD, CHIPS], ids=["a backward on the CPU comes first", "the way of a TPU"])
def test_in_a_process_of_its_own(code: str) -> None:
    """The way of a TPU with one core, so that it runs on a CPU: torch_xla's process finds its line to the notebook."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
