"""The course map shows the notebooks that exist, and how each runs on a machine."""

import json
import re
import sys
from dataclasses import replace

import pytest

from course_utils import CourseError, discover
from course_utils.lessons import contents, course_map
from course_utils.machine import Device
from course_utils.tpus import Chips
from tests.files import NOTEBOOKS, ROOT, write


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """The map of a folder with four notebooks, on two cores and what `more` says, without a kernel
    `xla`.
    """

    def notebook(name, first, kernel="python3"):
        page = {"cells": [{"source": [first]}], "metadata": {"kernelspec": {"name": kernel}}}
        (tmp_path / f"{name}.ipynb").write_text(json.dumps(page))

    notebook(
        "01_tensors_and_devices",
        "# 01 · Where?\n\n**Takes** 45 min · **Tracks** short, strategies · **Needs** …",
    )
    notebook(
        "05_ranks", "# 05 · How do they talk?\n\n**Takes** 70 min · **Track** short · **Needs** …"
    )
    notebook(
        "15_tpu_one_core",
        "# 15 · What is <different>?\n\n**Takes** 55 min · **Track** short · **Needs** …",
        "xla",
    )
    notebook("mine", "# Not a notebook of the course")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    cpu = Device("cpu", "cpu", "a CPU", 2**34)
    machine = replace(discover(), devices=(cpu,), cores=2.0, cores_total=2, xla=None, tpu=None)

    def of(**more):
        monkeypatch.setattr(contents, "discover", lambda: replace(machine, **more))
        return course_map()

    return of


def test_the_notebooks_of_the_course(shown):
    page = shown()
    assert re.sub(" +", " ", repr(page)).strip().splitlines() == [
        "notebook takes tracks here",
        "01 Where? 45 min short, strategies ● native: the CPU",
        "05 How do they talk? 70 min short ◐ virtual: 4 ranks share 2 CPU cores; gloo",
        "15 What is <different>? 55 min short ○ not here: needs the XLA kernel",
    ]
    assert re.search(r'<a href="05_ranks.ipynb"[^>]*>How do they talk\?</a>', page.html)
    assert "What is &lt;different&gt;?" in page.html


@pytest.mark.parametrize(
    "first", ["# Where?", "# 06 · How?\n\n**Takes** 45 min, **Track** short · **Needs** …"]
)
def test_a_first_cell_that_cannot_be_read_is_an_error(shown, first, tmp_path):
    (tmp_path / "06_ddp.ipynb").write_text(json.dumps({"cells": [{"source": [first]}]}))
    with pytest.raises(CourseError, match=r"first cell of 06_ddp.ipynb .* '# 06 · A question\?'"):
        shown()


def test_on_eight_gpus_with_a_tpu(shown):
    gpus = tuple(Device(f"cuda:{i}", "cuda", "NVIDIA H200", 2**37) for i in range(8))
    ranks = {"backend": "nccl", "native_counts": range(1, 9)}
    tpu = {"xla": "torch_xla 2.9.0", "tpu": Chips("v5e", 8)}
    page = repr(shown(devices=(gpus[0], *gpus), **ranks, **tpu))
    for here in ("NVIDIA H200", "8 ranks on 8 GPUs; nccl", "8 \N{MULTIPLICATION SIGN} TPU v5e"):
        assert f"● native: {here}" in page


def test_the_kernel_for_xla(shown, tmp_path):
    for folder, how in (
        (".venv", "not here: needs the XLA kernel"),
        (".venv-xla", "virtual: cores of XLA's CPU"),
    ):
        python = tmp_path / folder / "bin/python"
        write(
            tmp_path,
            {".venv/share/jupyter/kernels/xla/kernel.json": json.dumps({"argv": [str(python)]})},
        )
        assert "not here" in repr(shown()), "that Python is gone"
        write(python.parent, {"python": ""})
        assert how in repr(shown())


def test_makes_own_kernel_for_xla(shown, tmp_path):
    kernel = "share/jupyter/kernels/xla/kernel.json"
    made = (ROOT / kernel.replace("share", "tools")).read_text()
    write(tmp_path, {f".venv/{kernel}": made})
    assert "not here" in repr(shown()), ".venv-xla is not built"
    write(tmp_path, {".venv-xla/ready": ""})
    assert "virtual: cores of XLA's CPU" in repr(shown())


def test_the_real_notebooks_are_all_on_it(monkeypatch):
    monkeypatch.chdir(ROOT / "notebooks")
    files = [path.name for path in NOTEBOOKS]
    assert re.findall(r'href="([^"]+)"', course_map().html) == files
