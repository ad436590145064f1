"""The cells of notebook 19 that start torchrun leave no process behind: interrupted, or when the
kernel restarts.
"""

from contextlib import suppress

import psutil
import pytest

from tests.kernel import Kernel, eventually, gone, posix
from tests.scripts.notebook import cells_of

pytestmark = posix
CELLS = (
    "HOSTS, EACH",
    "def network(",
    "def accident(",
    "def train(",
    "export(train, WORK",
    "def started(",
    "def agents(",
)
LONG_RUN = """
with started("long", *agents(script, "--steps", 100_000, "--pause", 0.1)) as running:
    LivePlot("loss").follow(WORK / "long" / "runs", until=running)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interrupt", "restart"])
def test_nothing_is_left(fresh, how):
    for cell in cells_of("19", *CELLS):
        fresh.works(cell)
    cell = fresh.send(LONG_RUN)
    started = eventually(lambda: _started(fresh))
    assert started, "two agents and their workers, one each"
    if how == "interrupt":
        fresh.interrupt(cell)
    else:
        fresh.client.stop_channels()
        fresh.manager.restart_kernel(now=False)
    assert not gone(started)


def _started(kernel: Kernel) -> list[psutil.Process]:
    """The kernel's descendants with the script in their command, once there are four."""
    found = []
    for process in kernel.process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "train.py" in " ".join(process.cmdline()):
                found.append(process)
    return found if len(found) >= 4 else []
