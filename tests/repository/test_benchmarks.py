"""Every benchmark runs and prints its tables; how fast things are is for a quiet machine, not for a
test.
"""

import pytest

from tests.files import ROOT
from tests.python import python


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tables"),
    [("launch", 2), ("faults", 1), ("live", 1), ("report", 1), ("classroom", 1)],
)
def test_it_prints_its_tables(name, tables, tmp_path):
    done = python(ROOT / "benchmarks" / f"{name}.py", "--quick", cwd=tmp_path, timeout=2400)
    assert done.stdout.count("\n| --- |") == tables
    assert "torch 2." in done.stdout  # the machine's description
