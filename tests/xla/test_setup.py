"""A kernel without torch_xla, or with one that does not fit its torch, says so in words; neither is needed here."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from course_utils import CourseError, xla


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(sys.modules["course_utils.xla.launch"], "version", version)


@pytest.mark.parametrize("call", [xla.setup, lambda: xla.launch(print)])
def test_the_wrong_kernel(call, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, torch="2.13.0")
    with pytest.raises(CourseError) as caught:
        call()
    for words in ("has no torch_xla", "Change Kernel", "PyTorch/XLA", "make lab", "torch_xla[tpu]==2.9.0"):
        assert words in str(caught.value)


@pytest.mark.parametrize("call", [xla.setup, lambda: xla.launch(print)])
def test_versions_that_are_no_pair(call, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, torch="2.13.0+cpu", torch_xla="2.9.0")
    with pytest.raises(CourseError, match=r"torch 2\.13\.0\+cpu and torch_xla 2\.9\.0 are no pair.*torch==2\.9\.0"):
        call()


def test_a_pair(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "TPU")  # which setup leaves alone
    monkeypatch.setattr("course_utils.xla.tpu.cores", lambda: 8)
    installed(monkeypatch, torch="2.9.1+cu128", torch_xla="2.9.0")
    xla.setup()
    assert "torch_xla 2.9.0, torch 2.9.1+cu128: the TPU, 8 cores." in capsys.readouterr().out


def test_how_far_the_build_behind_jupyterlab_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, torch="2.13.0")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "xla.log").write_text("Collecting torch\n  Downloading torch-2.9.0.whl (184 MB)\n\n")
    with pytest.raises(CourseError, match=r"in some minutes \(now: Downloading torch-2\.9\.0\.whl \(184 MB\)\)\. When"):
        xla.setup()
