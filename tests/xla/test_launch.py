"""`xla.launch` on virtual cores: what comes back, by core; SPMD; and every way to fail, in words, leaving nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytest.importorskip("torch_xla")

import torch

from course_utils import CourseError, LivePlot, RankError, pick, report, xla

LAUNCH = sys.modules["course_utils.xla.launch"]  # the module; the room hands out its function of the same name


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    deadline = time.monotonic() + 5
    while (left := [p for p in psutil.Process().children(recursive=True) if p.num_threads() > 4]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not left, f"processes of cores were left behind: {left}"


def ordinals() -> tuple[int, int]:
    import torch_xla.runtime as xr

    return xr.global_ordinal(), xr.world_size()


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_every_core_has_its_number(cores: int) -> None:
    run = xla.launch(ordinals, cores=cores)
    assert run.results == [(core, cores) for core in range(cores)]
    assert (run.ranks, run.unit) == (cores, "core")
    assert f"{cores} core" in repr(run)


def test_eight_by_default() -> None:
    assert len(xla.launch(ordinals).results) == 8


def test_again_and_again_in_one_process() -> None:
    assert [xla.launch(ordinals, cores=2).results for _ in range(3)] == [[(0, 2), (1, 2)]] * 3


def test_arguments_and_closures_travel_by_value() -> None:
    offset = [10]

    def add(x: int, *, y: int) -> int:
        import torch_xla.runtime as xr

        offset[0] += xr.global_ordinal()  # a list of its own on every core, though cores share a process
        return offset[0] + x + y

    assert xla.launch(add, 1, y=2, cores=4).results == [13, 14, 15, 16]
    assert offset == [10]


def test_the_kernels_own_runtime_does_not_matter() -> None:
    import torch_xla

    assert (torch.ones(2).to(torch_xla.device()) + 1).tolist() == [2, 2]  # initialises it here
    assert len(xla.launch(ordinals, cores=2).results) == 2


def test_pick_is_the_cores_device() -> None:
    assert xla.launch(lambda: str(pick()), cores=3).results == ["xla:0", "xla:1", "xla:2"]


def test_prints_and_metrics_by_core(capsys: pytest.CaptureFixture) -> None:
    def work() -> None:
        core, _ = ordinals()
        print("I am", core)
        print("a warning", file=sys.stderr)
        for step in range(3):
            report(step, loss=core + step / 10)

    plot = LivePlot("loss")
    run = xla.launch(work, cores=3, live=plot)
    assert sorted(run.output) == [f"I am {core}\na warning\n" for core in range(3)]
    printed = capsys.readouterr().out
    assert all(f"[core {core}] I am {core}" in printed for core in range(3))
    assert run.column("loss", rank=2) == [2.0, 2.1, 2.2]
    assert plot.data["loss"][1] == ([0, 1, 2], [1.0, 1.1, 1.2])


def test_show_false_prints_nothing(capsys: pytest.CaptureFixture) -> None:
    assert xla.launch(lambda: print("hello"), cores=2, show=False).output == ["hello\n"] * 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("make", ["ones times the number", "full", "uploaded"])
def test_all_reduce_of_numbers_that_differ_by_core(make: str) -> None:
    """Numbers must not be part of a core's program: programs that differ never meet."""

    def work() -> list[float]:
        import torch_xla
        import torch_xla.core.xla_model as xm

        (core, _), device = ordinals(), torch_xla.device()
        tensors = {
            "ones times the number": lambda: torch.ones(2, device=device) * core,
            "full": lambda: torch.full((2,), float(core), device=device),
            "uploaded": lambda: torch.tensor([core, core], dtype=torch.float).to(device),
        }
        return xm.all_reduce(xm.REDUCE_SUM, tensors[make]()).tolist()

    assert xla.launch(work, cores=4, time_limit=30).results == [[6, 6]] * 4


def test_eight_cores_on_eighths_of_a_batch_are_one_process_on_the_whole() -> None:
    from course_utils.lessons import data, models

    x, y = (tensor[:256] for tensor in data.digits().train.tensors)

    def train(x: torch.Tensor, y: torch.Tensor) -> list[list[torch.Tensor]]:
        import torch_xla.core.xla_model as xm

        core, cores = ordinals()
        model = models.mlp().to(pick())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = x[core::cores].to(pick()), y[core::cores].to(pick())
        history = []
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            xm.optimizer_step(optimizer, barrier=True)
            history.append([parameter.detach().cpu() for parameter in model.parameters()])
        return history

    by_core = xla.launch(train, x, y, cores=8).results
    for step in range(5):
        for others in by_core[1:]:
            assert all(torch.equal(a, b) for a, b in zip(by_core[0][step], others[step], strict=True))

    model = models.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        for ours, whole in zip(by_core[0][step], model.parameters(), strict=True):
            torch.testing.assert_close(ours, whole.detach(), atol=1e-5, rtol=0)


def test_spmd_is_one_program_with_all_devices() -> None:
    def program() -> tuple:
        import numpy
        import torch_xla
        import torch_xla.distributed.spmd as xs
        import torch_xla.runtime as xr

        devices = xr.global_runtime_device_count()
        mesh = xs.Mesh(numpy.arange(devices), (devices,), ("data",))
        x = torch.arange(16.0).reshape(8, 2).to(torch_xla.device())
        xs.mark_sharding(x, mesh, ("data", None))
        print("once")
        return xr.is_spmd(), devices, "devices=[8,1]" in torch_xla._XLAC._get_xla_sharding_spec(x), x.sum(0).cpu()

    run = xla.launch(program, cores=8, spmd=True)
    spmd, devices, sharded, total = run.results[0]
    assert (spmd, devices, sharded, total.tolist()) == (True, 8, True, [56, 64])
    assert (run.output, run.unit, len(run.results)) == (["once\n"], "program", 1)


def fails(function, **options) -> RankError:
    with pytest.raises(RankError) as caught:
        xla.launch(function, **{"cores": 4, "time_limit": 60, "show": False} | options)
    return caught.value


def meet() -> float:
    import torch_xla.core.xla_model as xm

    return xm.all_reduce(xm.REDUCE_SUM, torch.ones(1).to(pick())).item()


def test_a_core_that_raises_is_named() -> None:
    def work() -> None:
        if ordinals()[0] == 2:
            raise ValueError("bad shard")
        meet()

    error = fails(work)
    assert (error.rank, error.cause) == (2, "ValueError")
    assert "core 2 of 4 raised ValueError: bad shard" in str(error)
    assert 'raise ValueError("bad shard")' in str(error)


def test_sys_exit_of_a_core() -> None:
    assert "core 1 of 4 called sys.exit(3)" in str(fails(lambda: sys.exit(3) if ordinals()[0] == 1 else meet()))


@pytest.mark.parametrize(
    ("die", "words"),
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed (SIGKILL)"), (lambda: os._exit(4), "exit code 4")],
)
def test_the_process_of_the_cores_dies(die, words: str) -> None:
    error = fails(lambda: die() if ordinals()[0] == 1 else meet())
    assert "the process of the 4 cores" in str(error)
    assert words in str(error)
    assert error.rank is None


def test_a_core_that_skips_a_collective_is_named_at_the_time_limit() -> None:
    error = fails(lambda: meet() if ordinals()[0] != 3 else None, time_limit=3)
    assert error.cause == "TimeLimit"
    assert "cores 0, 1, 2 of 4 had not finished after the time limit of 3 s" in str(error)
    assert "core 3 had returned: a collective needs every core" in str(error)
    assert "wait for the value of a tensor here" in str(error)


def test_a_late_core_is_named_before_the_others_give_up() -> None:
    error = fails(lambda: meet() if ordinals()[0] != 0 else time.sleep(60))
    assert error.cause == "Stuck"
    assert "3 of 4 cores reached a collective" in str(error)
    assert "cores 1, 2, 3 wait for the value of a tensor here" in str(error)
    assert "core 0 is here" in str(error)
    assert "time.sleep(60)" in str(error)


def test_a_crash_in_compiled_code_shows_where_the_cores_were() -> None:
    import ctypes

    error = fails(lambda: ctypes.string_at(0) if ordinals()[0] == 2 else meet())
    assert "the process of the 4 cores crashed (SIGSEGV" in str(error)
    assert "core 2 is here" in str(error)
    assert "ctypes.string_at(0)" in str(error)


def test_a_result_that_cannot_travel() -> None:
    error = fails(lambda: (i for i in range(3)))
    assert "cannot be sent back to the notebook" in str(error)


@pytest.mark.parametrize("spmd", [False, True])
def test_what_is_left_on_the_device_comes_back_on_the_cpu(spmd: bool) -> None:
    def work(given: torch.Tensor) -> dict:
        layer = torch.nn.Linear(2, 1).to(pick())
        half = torch.ones(2, dtype=torch.bfloat16).to(pick())
        return {"given": str(given.device), "nested": [(half * 3, layer.weight)], "module": layer}

    import torch_xla

    for found in xla.launch(work, torch.ones(1).to(torch_xla.device()), cores=3, spmd=spmd, show=False).results:
        ((half, weight),) = found["nested"]
        assert (found["given"], half.device.type, half.dtype, half.tolist()) == ("cpu", "cpu", torch.bfloat16, [3, 3])
        assert isinstance(weight, torch.nn.Parameter)
        assert weight.device.type == "cpu"
        assert found["module"].weight is weight, "what is one tensor there is one here"
        assert found["module"](torch.ones(2)).requires_grad


def test_spmd_errors_name_the_program() -> None:
    assert "the SPMD program raised ZeroDivisionError" in str(fails(lambda: 1 / 0, spmd=True))
    assert "the SPMD program ended with exit code 4" in str(fails(lambda: os._exit(4), spmd=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cores": 0}, "cores=0: there can be 1 to 64"),
        ({"cores": 65}, "1 to 64"),
        ({"cores": "eight"}, "cores=8"),
        ({"cores": True}, "cores=8"),
        ({"time_limit": -1}, "time_limit=-1"),
        ({"live": 3}, "live=3"),
        ({"ranks": 2}, "ranks=2: xla.launch runs cores; write cores=2"),
    ],
)
def test_wrong_arguments_start_nothing(options: dict, words: str) -> None:
    with pytest.raises(CourseError) as caught:
        xla.launch(ordinals, **options)
    assert words in str(caught.value)


def test_a_call_is_no_function() -> None:
    with pytest.raises(CourseError, match=r"launch\(train, 10\)"):
        xla.launch(3)


def test_cores_cannot_start_cores() -> None:
    def nested() -> str:
        try:
            xla.launch(ordinals, cores=2)
        except CourseError as error:
            return str(error)
        return ""

    assert all("inside a" in words for words in xla.launch(nested, cores=2).results)


def test_a_wrong_count_on_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    monkeypatch.setattr("course_utils.xla.tpu.cores", lambda: 8)
    with pytest.raises(CourseError, match="cores=3: this TPU has 8"):
        xla.launch(ordinals, cores=3)


def test_a_tpu_that_the_kernel_already_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_xla

    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    monkeypatch.setattr("course_utils.xla.tpu.cores", lambda: 8)
    monkeypatch.setattr(torch_xla._XLAC, "_xla_runtime_is_initialized", lambda: True)
    with pytest.raises(CourseError, match="restart the kernel"):
        xla.launch(ordinals)


def test_another_device_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "NEURON")
    with pytest.raises(CourseError, match='PJRT_DEVICE="NEURON"'):
        xla.launch(ordinals)


def test_setup_says_what_is_here(capsys: pytest.CaptureFixture) -> None:
    xla.setup()
    assert f"torch {torch.__version__.split('+')[0]}" in capsys.readouterr().out
    assert os.environ["PJRT_DEVICE"] == "CPU"


BACKWARD = """
from course_utils import xla
xla.setup()
import torch, torch_xla
for device in ("cpu", torch_xla.device()):
    weight = torch.ones(2, device=device, requires_grad=True)
    (weight * 3).sum().backward()
    assert weight.grad.tolist() == [3, 3]
"""


def test_a_backward_on_the_cpu_comes_first() -> None:
    """Autograd starts its threads in its first backward; without XLA's devices then, XLA could never have one."""
    done = subprocess.run([sys.executable, "-c", BACKWARD], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


CHIPS = """
import multiprocessing as mp, os, pickle
from course_utils.ranks.payload import packed
from course_utils.ranks.report import Task
from course_utils.xla import core
def work():
    import torch_xla.runtime as xr
    print("hello")
    return xr.global_ordinal(), xr.world_size(), os.getpid()
os.environ |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}
ours, theirs = mp.Pipe()
core.share(Task(packed(work, (), {}), {}, {}, ".", "xla", core.REPLICAS, 1, None, 0.0), theirs)
core.chips()
said = {}
while ours.poll(1):
    rank, kind, *values = ours.recv()
    said[kind] = values
assert pickle.loads(said["result"][0])[:2] == (0, 1), said
assert pickle.loads(said["result"][0])[2] == said["at"][0] != os.getpid(), "torch_xla.launch starts processes"
assert said["output"] == [b"hello\\n"]
"""


def test_the_way_of_a_tpu_through_torch_xlas_own_launch() -> None:
    """With one core, so that it runs on a CPU, too: a process that torch_xla starts finds its line to the notebook."""
    done = subprocess.run([sys.executable, "-c", CHIPS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
