"""What a kernel is told before XLA runs: which torch_xla it has, which device it gets. No TPU was
there.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from course_utils import CourseError, xla
from course_utils.tpus import Chips

# the module; the package hands out its function of the same name
LAUNCH = sys.modules["course_utils.xla.launcher"]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch):
    """A kernel with these versions, on a machine whose TPU has eight cores."""

    def describe(versions: dict[str, str]) -> None:
        def version(name: str) -> str:
            if name not in versions:
                raise PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(LAUNCH, "version", version)
        monkeypatch.setattr(LAUNCH, "_tpu_cores", lambda: 8)
        monkeypatch.setattr(LAUNCH.tpus, "chips", lambda: Chips("v5e", 8))
        monkeypatch.delenv("PJRT_DEVICE", raising=False)

    return describe


@pytest.mark.parametrize("call", [xla.setup, lambda: xla.launch(print)])
def test_the_wrong_kernel(call, kernel) -> None:
    kernel({"torch": "2.13.0"})
    with pytest.raises(
        CourseError, match=r"has no torch_xla.*make lab.*Change Kernel.*torch_xla\[tpu\]==2\.9\.0"
    ):
        call()


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
    kernel({"torch": "2.9.0", "torch_xla": "2.9.0"})
    xla.setup(device="CPU")
    assert (
        capsys.readouterr().out
        == "torch_xla 2.9.0, torch 2.9.0: XLA compiles for this machine's CPU.\n"
    )
    assert xla.tolerance(1e-4) == pytest.approx(1e-4)
