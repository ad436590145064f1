"""What a kernel is told before XLA runs: which torch_xla it has, which device it gets; no TPU is needed, or was had."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from course_utils import CourseError, xla

LAUNCH = sys.modules["course_utils.xla.launch"]  # the module; the package hands out its function of the same name


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch):
    """A kernel with these versions, on a machine whose TPU has `cores`."""

    def describe(versions: dict[str, str], *, cores: int = 8) -> None:
        def version(name: str) -> str:
            if name not in versions:
                raise PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(LAUNCH, "version", version)
        monkeypatch.setattr(LAUNCH, "_tpu_cores", lambda: cores)
        monkeypatch.setattr(LAUNCH, "tpu_chips", lambda: "TPU v5e, 8 chips")
        monkeypatch.delenv("PJRT_DEVICE", raising=False)

    yield describe
    monkeypatch.undo()


@pytest.mark.parametrize("call", [xla.setup, lambda: xla.launch(print)])
def test_the_wrong_kernel(call, kernel) -> None:
    kernel({"torch": "2.13.0"})
    with pytest.raises(CourseError, match=r"has no torch_xla.*make lab.*Change Kernel.*torch_xla\[tpu\]==2\.9\.0"):
        call()


def test_versions_that_are_no_pair(kernel) -> None:
    kernel({"torch": "2.13.0+cpu", "torch_xla": "2.9.0"})
    with pytest.raises(CourseError, match=r"torch 2\.13\.0\+cpu and torch_xla 2\.9\.0 are no pair.*torch==2\.9\.0"):
        xla.setup()


def test_a_tpu(kernel, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel({"torch": "2.9.1+cu128", "torch_xla": "2.9.0"})
    for name in LAUNCH.PRESET:  # as Kaggle does
        monkeypatch.setenv(name, "local")
    xla.setup()
    assert capsys.readouterr().out == "torch_xla 2.9.0, torch 2.9.1+cu128: the TPU, 8 cores.\n"
    assert os.environ["PJRT_DEVICE"] == "TPU"
    assert not set(LAUNCH.PRESET) & set(os.environ)
    assert xla.tolerance(1e-4) == pytest.approx(0.1)
    with pytest.raises(CourseError, match="all of a TPU"):
        xla.launch(print, cores=3)


def test_virtual_cores_beside_a_tpu(kernel, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("torch_xla")
    kernel({"torch": "2.9.0", "torch_xla": "2.9.0"}, cores=1)
    xla.setup(device="CPU")
    assert capsys.readouterr().out == "torch_xla 2.9.0, torch 2.9.0: XLA compiles for this machine's CPU.\n"
    assert xla.tolerance(1e-4) == pytest.approx(1e-4)


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
    code = GIVE_BACK.format(held=held, device=device)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert ("still here" not in done.stdout, "ends now" in done.stdout) == (ends, ends)
