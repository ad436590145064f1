"""The package alone: its sdist makes a wheel that works with only torch and Jupyter beside it."""

import shutil
import sys
import sysconfig

import pytest

from tests.files import ROOT
from tests.kernel import posix
from tests.python import run
from tests.scripts.notebook import outside

SDIST = "from setuptools import build_meta; build_meta.build_sdist('dist')"
EXECUTE = """
import nbformat, sys
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
cells = [new_code_cell(source) for source in sys.argv[1:]]
NotebookClient(new_notebook(cells=cells), timeout=600, kernel_name="python3").execute()
"""
TRAIN = """
import torch.distributed as dist
from course_utils import LivePlot, export, launch, report
def train(steps):
    for step in range(steps):
        report(loss=1 / (step + 1))
    return dist.get_world_size()
"""
USE = """
plot = LivePlot("loss")
assert launch(train, 3, ranks=2, device="cpu", live=plot).results == [2, 2]
assert [len(steps) for steps, _ in plot.data["loss"].values()] == [3, 3]
export(train, "train.py", 3, ranks=2, device="cpu")
"""
ABOUT = """
import importlib.metadata, importlib.resources, course_utils
assert importlib.metadata.version("course_utils") == course_utils.__version__
assert importlib.resources.files(course_utils).joinpath("py.typed").is_file()
print(course_utils.__file__)
"""


@posix
@pytest.mark.slow
def test_sdist_wheel_and_what_they_install(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "course_utils", source / "course_utils")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-c", SDIST, cwd=source)
    (sdist,) = source.glob("dist/*.tar.gz")

    pip = [sys.executable, "-m", "pip"]
    alone = ["--no-index", "--no-deps"]  # nothing is fetched
    run(*pip, "wheel", *alone, "--no-build-isolation", "-w", tmp_path, sdist)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(*pip, "--python", python, "install", *alone, wheel)

    folder = {"cwd": tmp_path, "env": outside()}
    (there,) = tmp_path.glob("venv/lib/python*/site-packages")
    (there / "theirs.pth").write_text(sysconfig.get_path("purelib"))
    assert str(there) in run(python, "-c", ABOUT, **folder).stdout
    run(python, "-c", EXECUTE, TRAIN, USE, **folder)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert "2" in run(python, *torchrun, "train.py", **folder).stdout
