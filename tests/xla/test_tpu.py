"""What a real TPU does differently, one difference at a time; no TPU is needed, and none was had."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from course_utils import CourseError, xla
from course_utils.xla import tpu

LAUNCH = sys.modules["course_utils.xla.launch"]  # the module; the room hands out its function of the same name


@pytest.fixture
def slice_of(monkeypatch: pytest.MonkeyPatch):
    """A TPU as torch_xla would describe it."""

    def describe(*, hosts: int | OSError = 1, devices: int = 8, holders: tuple[int, ...] = ()) -> None:
        def num_tpu_workers() -> int:
            if isinstance(hosts, OSError):
                raise hosts
            return hosts

        fake = SimpleNamespace(num_tpu_workers=num_tpu_workers, num_available_devices=lambda: devices)
        monkeypatch.setitem(sys.modules, "torch_xla._internal", SimpleNamespace(tpu=fake))
        monkeypatch.setitem(sys.modules, "torch_xla._internal.tpu", fake)
        monkeypatch.setattr(tpu, "holders", lambda: list(holders))
        monkeypatch.setattr(tpu, "PATIENCE", 0.3)
        monkeypatch.setenv("PJRT_DEVICE", "TPU")
        versions = {"torch": "2.9.0", "torch_xla": "2.9.0"}
        monkeypatch.setattr(LAUNCH, "version", versions.__getitem__)
        for name in tpu.PRESET:
            monkeypatch.delenv(name, raising=False)

    return describe


@pytest.mark.parametrize("devices", [1, 4, 8])
def test_there_are_as_many_cores_as_there_are(devices: int, slice_of, capsys: pytest.CaptureFixture) -> None:
    slice_of(devices=devices)
    assert tpu.cores() == devices
    xla.setup()
    said = capsys.readouterr().out
    assert f"the TPU, {devices} core" in said
    assert ('xla.setup(device="CPU")' in said) == (devices == 1)


@pytest.mark.parametrize("call", [xla.setup, lambda: xla.launch(print)])
def test_several_hosts_are_refused_in_words(call, slice_of) -> None:
    slice_of(hosts=4)
    with pytest.raises(CourseError, match=r"4 hosts.*for ever.*script on every host"):
        call()


def test_no_metadata_server(slice_of) -> None:
    slice_of(hosts=ConnectionError("metadata.google.internal"), devices=1)
    assert tpu.cores() == 1


@pytest.mark.parametrize("call", [xla.setup, lambda: xla.launch(print)])
def test_another_kernel_holds_the_tpu(call, slice_of) -> None:
    slice_of(holders=(4711,))
    with pytest.raises(CourseError, match=r"held by process 4711.*shut that kernel down"):
        call()


def test_the_processes_of_the_last_launch_have_a_moment_to_end(slice_of, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_of()
    held = [[4711], [4711], []]
    monkeypatch.setattr(tpu, "holders", lambda: held.pop(0))
    monkeypatch.setattr(tpu, "PATIENCE", 5.0)
    assert tpu.cores() == 8


def test_who_holds_the_chips(tmp_path) -> None:
    for pid, name, target in [
        (41, "7", "/dev/accel0"), (42, "3", "/dev/vfio/1"), (43, "3", "/dev/vfio/vfio"), (44, "1", "/dev/null"),
        (os.getpid(), "9", "/dev/accel1"),
    ]:
        folder = tmp_path / "proc" / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder / name).symlink_to(target)
    assert tpu.holders(tmp_path) == [41, 42]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nobody_holds_a_tpu_here() -> None:
    assert tpu.holders() == []


def test_kaggles_settings_are_forgotten(slice_of, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_of()
    for name in tpu.PRESET:
        monkeypatch.setenv(name, "local")
    xla.setup()
    assert not [name for name in tpu.PRESET if name in os.environ]


PRESET = """
import multiprocessing as mp, os, pickle, sys
from course_utils.ranks.report import Task
from course_utils.xla import core
os.environ["TPU_PROCESS_ADDRESSES"] = "local"  # the server's own, from before
env = {"PJRT_DEVICE": "TPU", "CLOUD_TPU_TASK_ID": "0"} | dict(PATH=os.environ["PATH"])
core.enter = core.leave = lambda *_: None
core.take_over = lambda task: os.environ.update(task.env)
core.chips = lambda: print(*(name for name in core.tpu.PRESET if name in os.environ), "none", file=sys.stdout)
task = Task(b"", {}, env, ".", "xla", core.REPLICAS, 1, None, 0.0)
core.main([0], mp.Pipe()[0], None, None, pickle.dumps(task))
"""


def test_in_the_processes_of_the_cores_too() -> None:
    done = subprocess.run([sys.executable, "-c", PRESET], capture_output=True, text=True, timeout=120)
    assert done.stdout == "none\n", done.stderr[-2000:]


def test_virtual_cores_beside_a_tpu(slice_of, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_xla")
    slice_of(devices=1, holders=(4711,))  # neither matters then
    monkeypatch.setattr(LAUNCH, "tpu_chips", lambda: "TPU v5e, 1 chip")
    xla.setup(device="CPU")
    assert capsys.readouterr().out == "torch_xla 2.9.0, torch 2.9.0: XLA compiles for this machine's CPU.\n"
    monkeypatch.undo()
    os.environ["PJRT_DEVICE"] = "CPU"


def test_another_device_than_those(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setattr(LAUNCH, "version", lambda name: "2.9.0")
    with pytest.raises(CourseError, match='PJRT_DEVICE="cuda"'):
        xla.setup(device="cuda")


@pytest.mark.parametrize(("installed", "words"), [("2.6.1", "2.8 or newer"), ("2.7.0", "torch_xla.tpu.==2.9.0")])
def test_an_older_torch_xla_is_refused_with_the_cure(installed: str, words: str, monkeypatch) -> None:
    monkeypatch.setattr(LAUNCH, "version", lambda name: installed)
    for call in (xla.setup, lambda: xla.launch(print)):
        with pytest.raises(CourseError, match=words):
            call()


OTHERS = [("2.8.1", True), ("2.9.0", False), ("2.9.0+cpu", False), ("2.10.0", True)]


@pytest.mark.parametrize(("installed", "said"), OTHERS)
def test_another_torch_xla_is_said(installed: str, said: bool, slice_of, capsys, monkeypatch) -> None:
    slice_of()
    monkeypatch.setattr(LAUNCH, "version", lambda name: installed)
    xla.setup()
    assert ("was tried with torch_xla 2.9" in capsys.readouterr().out) == said


@pytest.mark.parametrize(("device", "tolerance"), [("CPU", 1e-5), ("TPU", 1e-2)])
def test_tolerances_follow_the_device(device: str, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", device)
    assert xla.tolerance() == pytest.approx(tolerance)
    assert xla.tolerance(1e-4) == pytest.approx(10 * tolerance)


GIVE_BACK = """
import os, sys, time
from types import SimpleNamespace
from course_utils import xla
sys.modules["torch_xla"] = SimpleNamespace(_XLAC=SimpleNamespace(_xla_runtime_is_initialized=lambda: {held}))
os.environ["PJRT_DEVICE"] = "{device}"
xla.give_back()
time.sleep(3)
print("still here")
"""


@pytest.mark.parametrize(("device", "held", "ends"), [("TPU", True, True), ("TPU", False, False), ("CPU", True, False)])
def test_a_kernel_gives_the_tpu_back(device: str, held: bool, ends: bool) -> None:
    began = time.monotonic()
    code = GIVE_BACK.format(held=held, device=device)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert ("still here" not in done.stdout) == ends
    assert ("ends now" in done.stdout) == ends
    assert time.monotonic() - began > tpu.ENDS_AFTER, "the cell's answer reaches the page first"
