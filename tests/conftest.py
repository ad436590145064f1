"""For all tests: where torch_xla is, it is set up first, as in the TPU notebooks."""

from __future__ import annotations

from importlib.util import find_spec


def pytest_sessionstart() -> None:
    if find_spec("torch_xla"):
        from course_utils import xla

        xla.setup()
