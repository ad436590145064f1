"""For all tests: torch_xla is set up first, and one kernel serves all tests that only use it."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from .kernel import SETUP, Kernel


def pytest_sessionstart() -> None:
    if find_spec("torch_xla"):
        from course_utils import xla

        xla.setup()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the kernel run in one worker (`--dist loadgroup`)."""
    for item in items:
        if isinstance(item, pytest.Function) and "kernel" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("kernel"))


@pytest.fixture(scope="session")
def the_kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.fixture
def kernel(the_kernel: Kernel) -> Iterator[Kernel]:
    """The session's, without other tests' names; after a test nothing is left, a launch works."""
    the_kernel.run("%reset -f")
    the_kernel.run(SETUP)
    yield the_kernel
    the_kernel.assert_usable("launch(rank_of, ranks=3, device='cpu').results == [0, 1, 2] or 1/0")
