"""Every kind of use of several virtual cores, twice; STRESS=24 in the environment: 24 times, on 4 cores, too."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch_xla")

from course_utils import xla

from .uses import ON_CORES, SPMD

RUNS = int(os.environ.get("STRESS", 2))
CORES = (2, 8) if RUNS <= 2 else (2, 4, 8)


@pytest.mark.parametrize("name", [*ON_CORES, *SPMD])
@pytest.mark.parametrize("cores", CORES)
def test_no_hang_no_crash_and_right(name: str, cores: int) -> None:
    for _ in range(RUNS):
        xla.launch((ON_CORES | SPMD)[name], cores=cores, spmd=name in SPMD, time_limit=600)
