"""Colab and Kaggle: a machine has its own torch; pip adds our package from the repository, nothing
else, and notebooks run in a folder of their own.
"""

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.files import ROOT
from tests.python import run
from tests.scripts.notebook import outside

EXECUTE = """
import nbformat, sys
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
"""
FOUND = """
import course_utils, torch
from course_utils import pictures
pictures.explorer()  # the scripts came along
print(course_utils.__file__, torch.__file__, sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not ((ROOT / ".git").exists() and shutil.which("git")), reason="left out without git"
)
def test_pip_adds_our_package_and_nothing_else(tmp_path):
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
    install = ["-m", "pip", "install", "--no-index", "--no-build-isolation"]
    run(python, *install, f"git+{ROOT.as_uri()}", **folder)
    names = sorted(path.name.partition("-")[0] for path in there.iterdir())
    assert " ".join(dict.fromkeys(names)) == "course_utils theirs theirs.pth"
    ours, torch = run(python, "-c", FOUND, **folder).stdout.splitlines()
    assert Path(ours).is_relative_to(there)
    assert "theirs" in torch
    shutil.copy(ROOT / "notebooks" / "00_start_here.ipynb", tmp_path)
    run(python, "-c", EXECUTE, "00_start_here.ipynb", **folder)
