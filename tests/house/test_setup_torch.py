"""Which PyTorch `setup_env.py` takes: the CPU build where there is no NVIDIA driver, from an index that answers."""

from __future__ import annotations

import os
import re
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.fake_python import build, calls, furnish, python

# Builds course_utils without setuptools, which would have to be fetched.
BACKEND = """
def build_editable(folder, settings=None, metadata=None):
    import zipfile
    name = "course_utils-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        info = "course_utils-0.1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: course_utils\\nVersion: 0.1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""


class Index:
    """Two indexes on this machine, pip's ordinary one and the CPU one, and who asked them for what."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, []
        index = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                index.asked.append((self.path, self.headers["User-Agent"].split("/")[0]))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, index: str, version: str) -> None:
        page = self.folder / index / "torch"
        page.mkdir(parents=True)
        with zipfile.ZipFile(page / f"torch-{version}-py3-none-any.whl", "w") as wheel:
            info = f"torch-{version}.dist-info"
            wheel.writestr("torch.py", "")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path):
    index = Index(tmp_path / "served")
    index.add("ordinary", "2.13.0")
    index.add("cpu", "2.13.0+cpu")
    yield index
    index.server.shutdown()


@pytest.fixture
def house(tmp_path: Path) -> Path:
    return furnish(tmp_path)


def sources(house: Path, **how: object) -> tuple[int, str]:
    """How many of the two environments were given the CPU index, and what was said."""
    code, text = build(house, PYTHON=python(house, "3.12"), **how)
    assert code == 0
    return len(calls(house, "--extra-index-url")), text


def test_no_driver_takes_the_cpu_build(house: Path, index: Index) -> None:
    count, text = sources(house, TORCH_CPU_INDEX=f"{index.address}/cpu")
    assert count == 2
    assert "with Python 3.12: PyTorch's CPU build, as no NVIDIA driver is here; some minutes, once." in text
    assert index.asked == [("/cpu/torch/", "Python-urllib")], "asked once for both"


def test_a_driver_takes_cuda_but_not_for_xla(house: Path, index: Index) -> None:
    count, text = sources(house, TORCH_CPU_INDEX=f"{index.address}/cpu", driver=True)
    assert count == 1
    assert "PyTorch with CUDA, for the NVIDIA driver that is here" in text


def test_an_index_that_does_not_answer(house: Path) -> None:
    count, text = sources(house)
    assert count == 0
    assert "maybe with gigabytes of CUDA libraries, as http://127.0.0.1:9/cpu does not answer" in text


def test_a_page_that_is_no_index(house: Path, index: Index) -> None:
    (index.folder / "login/torch").mkdir(parents=True)
    (index.folder / "login/torch/index.html").write_text("Welcome to our network")
    assert sources(house, TORCH_CPU_INDEX=f"{index.address}/login")[0] == 0


def test_told(house: Path, index: Index) -> None:
    assert sources(house, CPU="1", driver=True)[0] == 2
    (house / ".venv/ready").unlink()
    assert sources(house, CPU="0", TORCH_CPU_INDEX=f"{index.address}/cpu")[0] == 0
    assert index.asked == [], "who is told does not ask"


def test_macos_takes_its_own(house: Path, index: Index) -> None:
    count, text = sources(house, system="Darwin", machine="arm64", TORCH_CPU_INDEX=f"{index.address}/cpu")
    assert (count, index.asked) == (0, [])
    assert "PyTorch for this machine" in text


@pytest.mark.parametrize(("code", "word"), [(0, "with CUDA"), (1, "that pip chooses")])
def test_a_driver_that_only_its_program_shows(house: Path, tmp_path: Path, code: int, word: str) -> None:
    script = house / "setup/torch_build.py"
    script.write_text(re.sub("^DRIVER = .*", "DRIVER = []", script.read_text(), flags=re.MULTILINE))
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    _, text = sources(house, driver=None, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert word in text.splitlines()[0]


def test_a_gpu_that_needs_another_build(house: Path, tmp_path: Path) -> None:
    _, text = sources(house, amd=str(tmp_path))
    assert "An AMD GPU is here, which the PyTorch in .venv does not use." in text
    assert "torch==2.13.0+rocm7.2 --extra-index-url https://download.pytorch.org/whl/rocm7.2" in text


def test_a_driver_that_came_later(house: Path) -> None:
    sources(house)
    (house / ".venv/lib/python3.12/site-packages/torch-2.13.0+cpu.dist-info").mkdir()
    assert "For the CUDA build: make clean, make lab" in build(house, driver=True)[1]
    assert build(house)[1] == ""


def test_real_pip_prefers_the_cpu_build_and_repairs_half_of_one(house: Path, index: Index) -> None:
    (house / "requirements.txt").write_text("torch==2.13.0\n")
    tiny = '[build-system]\nrequires = []\nbackend-path = ["."]\nbuild-backend = "tiny"\n'
    (house / "pyproject.toml").write_text(tiny)
    (house / "tiny.py").write_text(BACKEND)
    here = {
        "PIP_INDEX_URL": f"{index.address}/ordinary", "TORCH_CPU_INDEX": f"{index.address}/cpu",
        "PIP_CONFIG_FILE": os.devnull, "PYTHON": sys.executable, "XLA": "0",
    }
    code, text = build(house, **here)
    assert code == 0, text
    assert "MB fetched" in text.splitlines()[-1]
    (site,) = (house / ".venv/lib").glob("python*/site-packages")
    info = site / "torch-2.13.0+cpu.dist-info"
    assert info.exists()
    assert not (site / "torch-2.13.0.dist-info").exists()
    assert (house / ".venv/install.log").exists()
    assert not (house / ".venv/tmp").exists()

    # As pip leaves it when it is killed while it installs: the package is half there, the stamp is not.
    for file in (info / "RECORD", site / "torch.py", house / ".venv/ready"):
        file.unlink()
    kept = (house / ".venv/pyvenv.cfg").stat().st_mtime_ns
    code, text = build(house, **here)
    assert (code, text.startswith("Going on with .venv: ")) == (0, True)
    assert (site / "torch.py").exists()
    assert (house / ".venv/pyvenv.cfg").stat().st_mtime_ns == kept, "the environment was not made anew"
