"""The package alone, as Colab and Kaggle install it: a machine has its own torch, pip adds ours and
nothing else, and notebooks and scripts run in a folder of their own.
"""

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.files import NOTEBOOKS, ROOT
from tests.kernel import posix
from tests.python import run
from tests.scripts.notebook import outside

SDIST = "from setuptools import build_meta; build_meta.build_sdist('dist')"
EXECUTE = """
import nbformat, sys
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell
notebook = nbformat.read(sys.argv[1], 4)
notebook.cells += [new_code_cell(source) for source in sys.argv[2:]]
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
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
FOUND = """
import importlib.metadata, importlib.resources, course_utils, torch
from course_utils import pictures
pictures.explorer()  # the scripts came along
assert importlib.metadata.version("course_utils") == course_utils.__version__
assert importlib.resources.files(course_utils).joinpath("py.typed").is_file()
print(course_utils.__file__, torch.__file__, sep="\\n")
"""


@posix
@pytest.mark.slow
def test_pip_adds_our_package_and_nothing_else_and_it_works(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "course_utils", source / "course_utils")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-c", SDIST, cwd=source)
    (sdist,) = source.glob("dist/*.tar.gz")

    folder = {"cwd": tmp_path, "env": outside()}
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", **folder)
    python = tmp_path / "venv" / "bin" / "python"
    there = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    (there / "theirs").mkdir()  # all that this environment has, except course_utils
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "course_utils" not in entry.name:
            (there / "theirs" / entry.name).symlink_to(entry)
    (there / "theirs.pth").write_text(f"{there / 'theirs'}\n")
    # --no-index: whatever pip would fetch, it would be one package too many.
    run(python, "-m", "pip", "install", "--no-index", "--no-build-isolation", sdist, **folder)
    names = sorted(path.name.partition("-")[0] for path in there.iterdir())
    assert " ".join(dict.fromkeys(names)) == "course_utils theirs theirs.pth"

    ours, torch = run(python, "-c", FOUND, **folder).stdout.splitlines()
    assert Path(ours).is_relative_to(there)
    assert "theirs" in torch
    run(python, "-c", EXECUTE, NOTEBOOKS[0], TRAIN, USE, **folder)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert "2" in run(python, *torchrun, "train.py", **folder).stdout
