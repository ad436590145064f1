"""Every kind of use of several virtual cores, a few times; hundreds of times: `benchmarks/cores.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_xla")
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from core_cases import CASES

from course_utils import xla


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cores", [2, 8])
def test_no_hang_no_crash_and_right(name: str, cores: int) -> None:
    for _ in range(2):
        xla.launch(CASES[name], cores=cores, time_limit=120)
