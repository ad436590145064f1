"""For all tests: torch_xla is set up first, one kernel serves all tests that only use it, and
hypothesis draws the same in every run.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from course_utils.ranks import server

from .files import write
from .kernel import Kernel

# Ranks import a test's module, and so pytest: the server that they are forked from does it once.
server.PRELOAD = f"import pytest\n{server.PRELOAD}"  # ty: ignore[invalid-assignment]

CARDS = {
    "v4": "0x005e",
    "v5p": "0x0062",
    "v5e": "0x0063",
    "7x": "0x0076",
    "v2/v3": "0x0027",
    "no TPU": "0x001f",
}


def pytest_sessionstart() -> None:
    if find_spec("torch_xla"):
        from course_utils import xla

        xla.setup()
    if find_spec("hypothesis"):
        from hypothesis import settings

        settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the kernel run in one worker (`--dist loadgroup`); GPUs have to be there."""
    import torch

    for item in items:
        if isinstance(item, pytest.Function) and "kernel" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("kernel"))
        for marker, count in {"gpu": 1, "gpus": 2}.items():
            if item.get_closest_marker(marker) and torch.cuda.device_count() < count:
                item.add_marker(pytest.mark.skip(reason=f"CUDA GPUs that it needs: {count}"))


@pytest.fixture(scope="session")
def the_kernel() -> Iterator[Kernel]:
    with closing(Kernel()) as kernel:
        yield kernel


@pytest.fixture
def fresh() -> Iterator[Kernel]:
    """A kernel of its own, for tests that end it."""
    with closing(Kernel()) as kernel:
        yield kernel


@pytest.fixture
def kernel(the_kernel: Kernel) -> Iterator[Kernel]:
    """The session's, without other tests' names; after a test nothing is left, a launch works."""
    the_kernel.reset()
    yield the_kernel
    the_kernel.assert_usable("assert launch(rank_of, ranks=3, device='cpu').results == [0, 1, 2]")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable:
    """A machine with so many accelerators of this kind, none until it is called; not in a rank."""
    import torch

    def have(count: int, kind: str = "cuda", current: int = 0) -> None:
        here = torch.device(kind) if count else None
        about = SimpleNamespace(name="NVIDIA H200", total_memory=140 * 2**30)
        module = SimpleNamespace(
            get_device_properties=lambda index: about, device_count=lambda: count
        )
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available=False: here
        )
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: current)
        monkeypatch.setattr(torch, "get_device_module", lambda device: module)

    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "COURSE_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    have(0)
    return have


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """A host with so many of Google's cards of a kind, and with these versions installed."""
    from course_utils import tpus

    def have(kind: str, count: int, *, torch_tpu: str = "0.2.0", torch_xla: str = "") -> None:
        for i in range(count):
            write(tmp_path, {f"{i}/vendor": "0x1ae0", f"{i}/device": CARDS[kind]})
        there = {"torch_tpu": torch_tpu, "torch_xla": torch_xla}
        found = {name: [SimpleNamespace(version=there[name])] for name in there if there[name]}
        monkeypatch.setattr(tpus, "PCI", tmp_path)
        monkeypatch.setattr(tpus, "distributions", lambda name: found.get(name, []))

    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    return have


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list:
    """The figures that become PNGs."""
    from matplotlib.figure import Figure

    found: list = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        found.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found
