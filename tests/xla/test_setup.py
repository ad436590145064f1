"""A kernel without torch_xla, or with one that does not fit its torch, says so in words; neither is needed here."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError

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


@pytest.mark.parametrize(("builder", "words"), [
    ("mine", "fetching torch, 310 MB fetched so far, 74 s. When it is there, choose Kernel, Restart Kernel"),
    ("999999999", "Change Kernel"),  # it was killed: what it wrote last is not true any more
    ("", "fetching torch, 310 MB fetched so far, 74 s. On Linux x86-64 elsewhere, a Colab TPU runtime"),
])
def test_how_far_the_build_behind_jupyterlab_is(builder: str, words: str, monkeypatch, tmp_path) -> None:
    builder = str(os.getpid()) if builder == "mine" else builder
    installed(monkeypatch, torch="2.13.0")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    note = f"PyTorch/XLA is being built: fetching torch, 310 MB fetched so far, 74 s.\n{builder}\n"
    (tmp_path / "xla-build").write_text(note if builder else note.rstrip() + "\n")
    with pytest.raises(CourseError) as caught:
        xla.setup()
    assert words in str(caught.value)
