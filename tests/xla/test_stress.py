"""Every kind of use of several virtual cores, a few times; hundreds of times: `benchmarks/cores.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_xla")

from core_cases import CASES
from spmd_cases import SPMD_CASES

from course_utils import xla

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "cores.py"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cores", [2, 8])
def test_no_hang_no_crash_and_right(name: str, cores: int) -> None:
    for _ in range(2):
        xla.launch(CASES[name], cores=cores, time_limit=120)


@pytest.mark.parametrize("name", SPMD_CASES)
@pytest.mark.parametrize("devices", [2, 8])
def test_one_program_on_several_devices(name: str, devices: int) -> None:
    xla.launch(SPMD_CASES[name], cores=devices, spmd=True, time_limit=120)


def test_the_benchmark_prints_its_tables(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("| --- |") == 3  # kinds of use, steps, targets
    assert "nan" not in done.stdout
