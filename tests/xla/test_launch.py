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
from course_utils.lessons import data, models


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
    assert xla.launch(work, cores=3, show=False).output == run.output
    assert capsys.readouterr().out == ""


def test_all_reduce_of_numbers_that_differ_by_core() -> None:
    """Numbers must not be part of a core's program: programs that differ never meet."""

    def work() -> list[list[float]]:
        (core, _), device = ordinals(), torch_xla.device()
        tensors = (torch.ones(2, device=device) * core, torch.full((2,), float(core), device=device),
                   torch.tensor([core, core], dtype=torch.float).to(device))
        return [xm.all_reduce(xm.REDUCE_SUM, tensor).tolist() for tensor in tensors]

    assert xla.launch(work, cores=4, time_limit=600).results == [[[6, 6]] * 3] * 4


def test_eight_cores_on_eighths_of_a_batch_are_one_process_on_the_whole() -> None:
    x, y = (tensor[:256] for tensor in data.digits().train.tensors)

    def train(device: object, core: int = 0, cores: int = 1) -> list[list[torch.Tensor]]:
        model = models.mlp().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        mine, history = (x[core::cores].to(device), y[core::cores].to(device)), []
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(mine[0]), mine[1]).backward()
            optimizer.step() if cores == 1 else xm.optimizer_step(optimizer, barrier=True)
            history.append([parameter.detach().clone().cpu() for parameter in model.parameters()])
        return history

    by_core, whole = xla.launch(lambda: train(pick(), *ordinals()), cores=8).results, train("cpu")
    for step in range(5):
        for others in by_core[1:]:
            assert all(torch.equal(a, b) for a, b in zip(by_core[0][step], others[step], strict=True))
        for ours, theirs in zip(by_core[0][step], whole[step], strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


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
                ["the process of the 4 cores crashed (SIGSEGV", "core 2 is here", "ctypes.string_at(0)"]),
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


@pytest.mark.parametrize("cores", [0, 65])
def test_too_many_cores_start_nothing(cores: int) -> None:
    with pytest.raises(CourseError, match=f"cores={cores}: there can be 1 to 64"):
        xla.launch(ordinals, cores=cores)


def test_cores_cannot_start_cores() -> None:
    def nested() -> str:
        try:
            return str(xla.launch(ordinals, cores=2))
        except CourseError as error:
            return str(error)

    assert all("inside a" in words for words in xla.launch(nested, cores=2).results)


def test_torchs_checkpoint_fails_and_torch_xlas_has_a_barrier() -> None:
    from torch.utils.checkpoint import checkpoint
    from torch_xla.utils import checkpoint as theirs

    block, x = models.MLP(8).to(torch_xla.device()), torch.ones(2, 8).to(torch_xla.device()).requires_grad_()
    for reentrant in (False, True):
        with pytest.raises((AttributeError, RuntimeError), match="xla"):
            checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    theirs.checkpoint(block, x).sum().backward()
    assert "optimization_barrier" in torch_xla._XLAC._get_xla_tensors_text([block.up.weight.grad])


def test_a_closure_runs_when_its_step_has_run() -> None:
    said, x = [], torch.ones(2).to(torch_xla.device()) * 3
    xm.add_step_closure(lambda value: said.append(value.tolist()), args=(x,))
    assert said == []
    torch_xla.sync()
    assert said == [[3.0, 3.0]]


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
assert result[2] == kinds["at"][0] != os.getpid(), "torch_xla.launch starts processes"
assert b"".join(kinds["output"]) == b"hello\\n"
"""


@pytest.mark.parametrize("code", [BACKWARD, CHIPS], ids=["a backward on the CPU comes first", "the way of a TPU"])
def test_in_a_process_of_its_own(code: str) -> None:
    """The way of a TPU with one core, so that it runs on a CPU: torch_xla's process finds its line to the notebook."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
