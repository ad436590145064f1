"""Every benchmark runs and prints its table; how fast things are is for a quiet machine, not for a
test.
"""

import pytest

from tests.files import ROOT
from tests.python import python


@pytest.mark.slow
@pytest.mark.parametrize("name", ["launch", "faults", "live", "report"])
def test_it_prints_its_table(name, tmp_path):
    done = python(ROOT / "benchmarks" / f"{name}.py", "--quick", cwd=tmp_path)
    assert done.stdout.count("\n| --- |") == 1
    assert "torch 2." in done.stdout  # the machine's description
