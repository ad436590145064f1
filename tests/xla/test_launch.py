"""`xla.launch` on virtual cores: what comes back, by core; SPMD; every way to fail, in words."""

import atexit
import ctypes
import sys
import threading
import time
from multiprocessing import forkserver

import psutil
import pytest

pytest.importorskip("torch_xla")

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

from course_utils import LivePlot, RankError, pick, report, xla
from tests.kernel import eventually
from tests.python import python


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    server = vars(forkserver._forkserver)["_forkserver_pid"]
    assert server is None or eventually(lambda: not psutil.Process(server).children())


def ordinals() -> tuple[int, int]:
    return xr.global_ordinal(), xr.world_size()


def test_devices_prints_and_metrics_by_core(capsys):
    def work() -> tuple:
        core, cores = ordinals()
        print("I am", core)
        print("a warning", file=sys.stderr)
        for step in range(3):
            report(step, loss=core + step / 10)
        return core, cores, str(pick())

    plot = LivePlot("loss")
    run = xla.launch(work, live=plot)
    assert run.results == [(core, 8, f"xla:{core}") for core in range(8)]
    assert "8 cores" in repr(run)
    assert run.output == [f"I am {core}\na warning\n" for core in range(8)]
    printed = capsys.readouterr().out
    assert all(f"[core {core}] I am {core}" in printed for core in range(8))
    assert run.column("loss", rank=2) == [2.0, 2.1, 2.2]
    assert plot.data["loss"][1] == ([0, 1, 2], [1.0, 1.1, 1.2])


@pytest.mark.parametrize("spmd", [False, True])
def test_of_a_core_are_settings_of_its_thread_threads_and_what_the_first_one_prints(spmd):
    def work() -> bool:
        thread = threading.Thread(target=lambda: (report(loss=1.0), print("later")))
        thread.start()
        thread.join()
        xm.master_print("epoch 1")
        return torch.is_grad_enabled()

    with torch.no_grad():
        run = xla.launch(work, cores=2, spmd=spmd, show=False)
    assert {*run.results} == {False}
    assert run.output == ["later\nepoch 1\n", "later\n"][: len(run.output)]
    assert {record["rank"] for record in run.metrics} == {*range(len(run.output))}


@pytest.mark.parametrize("spmd", [False, True])
def test_the_end_of_their_process_belongs_to_the_call(spmd, tmp_path):
    by_thread, at_exit = tmp_path / "thread", tmp_path / "exit"

    def later() -> None:
        time.sleep(0.3)
        by_thread.write_text("written")

    def work() -> str:
        threading.Thread(target=later).start()
        atexit.register(at_exit.write_text, "written")
        return "result"

    run = xla.launch(work, cores=2, spmd=spmd, show=False)
    assert set(run.results) == {"result"}
    assert [by_thread.read_text(), at_exit.read_text()] == ["written", "written"]


def test_a_thread_that_does_not_end():
    def work() -> None:
        threading.Thread(target=time.sleep, args=(600,)).start()

    with pytest.raises(
        RankError, match=r"time limit of 10 s\n.* has returned, and waits for its threads"
    ):
        xla.launch(work, cores=2, time_limit=10)


def test_a_core_sees_its_own_bars_only():
    """Where tqdm would count the bars of all threads, and draw each below the others."""
    tqdm = pytest.importorskip("tqdm")

    def work() -> None:
        for _ in tqdm.tqdm(range(4), desc="steps"):
            time.sleep(0.2)  # so that all cores have a bar

    run = xla.launch(work, cores=3, show=False)
    assert all("\n\n" not in text and "4/4" in text for text in run.output)


def test_arguments_and_closures_travel_by_value_again_and_again():
    offset = [10]
    # The kernel's own runtime does not matter.
    assert (torch.ones(2).to(torch_xla.device()) + 1).tolist() == [2, 2]

    def add(x: int, *, y: int) -> int:
        offset[0] += ordinals()[0]  # a list of its own on every core, though cores share a process
        return offset[0] + x + y

    assert [xla.launch(add, 1, y=2, cores=3).results for _ in range(2)] == [[13, 14, 15]] * 2
    assert offset == [10]


@pytest.mark.parametrize("spmd", [False, True])
def test_what_is_left_on_the_device_comes_back_on_the_cpu(spmd):
    def work(given: torch.Tensor) -> dict:
        layer = torch.nn.Linear(2, 1).to(pick())
        half = torch.ones(2, dtype=torch.bfloat16).to(pick())
        return {"given": str(given.device), "nested": [(half * 3, layer.weight)], "module": layer}

    for found in xla.launch(work, torch.ones(1).to(torch_xla.device()), cores=3, spmd=spmd).results:
        ((half, weight),) = found["nested"]
        assert found["given"] == half.device.type == weight.device.type == "cpu"
        assert torch.equal(half, torch.full((2,), 3, dtype=torch.bfloat16))
        assert found["module"].weight is weight, "what is one tensor there is one here"
        assert found["module"](torch.ones(2)).requires_grad


def meet() -> float:
    return xm.all_reduce(xm.REDUCE_SUM, torch.ones(1).to(pick())).item()


FAULTS = {
    "crashes": (
        lambda: ctypes.string_at(0) if ordinals()[0] == 2 else meet(),
        (None, "SIGSEGV"),
        ["the process of the 4 cores crashed (SIGSEGV"],
    ),
    "is late": (
        lambda: meet() if ordinals()[0] else time.sleep(60),
        (None, "SIGABRT"),
        ["cores 1, 2, 3 wait for the value of a tensor here", "core 0 is here", "time.sleep(60)"],
    ),
    "raises in SPMD": (
        lambda: 1 / 0,
        (0, "ZeroDivisionError"),
        ["the SPMD program raised ZeroDivisionError"],
    ),
}


TEN_SECONDS = pytest.param("is late", marks=pytest.mark.slow)  # until XLA ends the process


@pytest.mark.parametrize("name", [*(name for name in FAULTS if name != "is late"), TEN_SECONDS])
def test_a_fault_is_named(name):
    function, who_and_why, words = FAULTS[name]
    with pytest.raises(RankError) as caught:
        xla.launch(function, cores=4, spmd=name.endswith("SPMD"), time_limit=600, show=False)
    assert (caught.value.rank, caught.value.cause) == who_and_why
    assert all(word in str(caught.value) for word in words), caught.value


BACKWARD = """
from course_utils import xla
xla.setup()
import torch, torch_xla
# Without XLA's devices in autograd's first backward, XLA never had one.
for device in ("cpu", torch_xla.device()):
    weight = torch.ones(2, device=device, requires_grad=True)
    (weight * 3).sum().backward()
    assert weight.grad.tolist() == [3, 3]
"""
CHIPS = """
import multiprocessing as mp, os
from course_utils.xla import core
from course_utils.ranks.launcher import pack_call
from course_utils.ranks.state import State
from course_utils.ranks.values import unpack
from course_utils.ranks.wire import Task
def work():
    import torch_xla.runtime as xr
    print("hello")
    return xr.global_ordinal(), xr.world_size(), os.getpid()
os.environ |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}
ours, theirs = mp.Pipe()
parcel, _ = pack_call(work, (), {})
task = Task(call=parcel, state=State({}, "", {}), ranks=1, device="xla", backend=core.REPLICAS,
            threads=1, timeout=None, started=0.0)
core.share(task, None, theirs)
core.chips()
messages = {}
while ours.poll(1):
    rank, message = ours.recv()
    assert rank == 0
    messages.setdefault(type(message).__name__, []).append(message)
[returned] = messages["Returned"]
result = unpack(returned.parcel, None)
assert result[:2] == (0, 1), messages
assert result[2] != os.getpid(), "torch_xla.launch starts processes"
assert b"".join(printed.data for printed in messages["Printed"]) == b"hello\\n"
"""


@pytest.mark.parametrize(
    "code", [BACKWARD, CHIPS], ids=["a backward on the CPU comes first", "the way of a TPU"]
)
def test_in_a_process_of_its_own(code):
    """A TPU's way with one core, on a CPU: torch_xla's process finds its line to the notebook."""
    python("-c", code)
