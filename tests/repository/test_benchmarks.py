"""Every benchmark runs and prints its table; how fast things are is for a quiet machine, not for a
test.
"""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["launch", "faults", "live", "report"])
def test_it_prints_its_table(name, tmp_path):
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("\n| --- |") == 1
    assert "torch 2." in done.stdout  # the machine's description
