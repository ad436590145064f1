"""For all tests: no board is written to, and where torch_xla is, it is set up first, as in the TPU notebooks."""

from __future__ import annotations

import os
from importlib.util import find_spec

os.environ["COURSE_BOARD"] = "0"  # kernels that tests start leave the board of whoever runs them alone


def pytest_sessionstart() -> None:
    if find_spec("torch_xla"):
        from course_utils import xla

        xla.setup()
