"""The course map shows the notebooks that exist, and how each runs on a machine."""

import json
import re
import sys
from dataclasses import replace

import pytest

from course_utils import discover
from course_utils.lessons import course_map
from course_utils.lessons.map import stops
from course_utils.machine.probe import Device
from tests.files import write


@pytest.fixture
def folder(tmp_path):
    def notebook(name, first, kernel="python3"):
        cell = {"cell_type": "markdown", "source": first.splitlines(keepends=True)}
        page = {"cells": [cell], "metadata": {"kernelspec": {"name": kernel}}}
        (tmp_path / f"{name}.ipynb").write_text(json.dumps(page))

    notebook("00_start_here", "# 00 · What have I got?\n\n**Takes** 20 min · **Roads** short, strategies · more")
    notebook("01_tensors_and_devices", "# Where does a tensor live?\n\nabout 30 minutes")
    notebook("04_ranks", "no title here")
    notebook("15_tpu_one_core", "# 13 · What is <different>?", "xla")
    notebook("draft", "# Not a notebook of the course")
    (tmp_path / "05_broken.ipynb").write_text("{")
    return tmp_path


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """An environment with no kernel `xla`, whatever this one has."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    return tmp_path / ".venv"


@pytest.fixture
def machine(prefix):
    cpu = Device("cpu", "cpu", "a CPU", 2**34, current=True)
    return replace(discover(), devices=(cpu,), cores=2.0, cores_total=2, backends=("gloo",), xla=None, tpu=None)


def test_what_is_there(folder, machine):
    found = stops(machine, folder)
    assert [stop.question for stop in found] == [
        "What have I got?",
        "Where does a tensor live?",
        "04_ranks",
        "What is <different>?",
    ]
    assert [stop.minutes for stop in found] == ["20 min", "30 min", "", ""]
    assert [stop.roads for stop in found] == ["short, strategies", "", "", ""]
    assert [stop.how for stop in found] == ["virtual", "native", "virtual", "not here"]
    assert found[2].here == "4 ranks share 2 CPU cores; gloo"


def test_on_eight_gpus(folder, machine):
    gpus = tuple(Device(f"cuda:{i}", "cuda", "NVIDIA H200") for i in range(8))
    devices = (*machine.devices, *gpus)
    big = replace(machine, devices=devices, backends=("gloo", "nccl"), library="nccl", xla="torch_xla 2.9.0")
    found = stops(big, folder)
    assert [stop.how for stop in found] == ["native", "native", "native", "virtual"]
    assert found[1].here == "NVIDIA H200"
    assert found[2].here == "8 ranks on 8 GPUs; nccl"


def test_with_a_tpu(folder, machine):
    found = stops(replace(machine, tpu="TPU v5e, 8 chips", xla="torch_xla 2.9.0"), folder)
    assert found[3][4:] == ("TPU v5e, 8 chips", "native")


def test_the_kernel_for_xla(folder, machine, prefix):
    ours, other = prefix / "bin/python", prefix.parent / ".venv-xla/bin/python"
    tpu = replace(machine, tpu="TPU v5e, 8 chips")
    for python, here, how in [
        (ours, "needs the XLA kernel", "not here"),
        (other, "cores of XLA's CPU client", "virtual"),
    ]:
        write(prefix, {"share/jupyter/kernels/xla/kernel.json": json.dumps({"argv": [str(python)]})})
        assert stops(machine, folder)[3].how == "not here", "that Python is gone"
        write(python.parent, {"python": ""})
        assert stops(machine, folder)[3][4:] == (here, how)
        assert stops(tpu, folder)[3].how == ("native" if python is other else "not here")


def test_the_map(folder, machine):
    picture = course_map(machine, folder=folder)
    page = picture._repr_html_()
    assert re.search(r'<a href="00_start_here.ipynb"[^>]*>What have I got\?</a>', page)
    assert "What is &lt;different&gt;?" in page
    assert "draft" not in page
    assert repr(picture).splitlines()[0].startswith("00  What have I got?")


def test_no_notebooks(tmp_path, machine):
    assert "No notebooks of the course in" in repr(course_map(machine, folder=tmp_path))


def test_the_real_notebooks_can_be_read(machine):
    from pathlib import Path

    for stop in stops(machine, Path(__file__).parents[2] / "notebooks"):
        assert stop.question.endswith("?"), stop.file
        assert stop.minutes, stop.file
        assert stop.roads, stop.file
