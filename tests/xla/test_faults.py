"""Virtual cores in a real kernel: errors show the cell's line; no end leaves anything."""

import os
import re
import signal
import textwrap
import time

import pytest

pytest.importorskip("torch_xla")

from tests.kernel import eventually, gone

SETUP = textwrap.dedent("""
    from course_utils import xla
    def core_of():
        import torch_xla.runtime as xr
        return xr.global_ordinal()
    def meet():
        import torch_xla.core.xla_model as xm
        return xm.all_reduce(xm.REDUCE_SUM, torch.ones(1).to(pick())).item()
""")


@pytest.fixture
def notebook(kernel):
    """The tests' kernel, whose next launch on cores must work after whatever the test did to it."""
    kernel.run(SETUP)
    yield kernel
    kernel.assert_usable("assert xla.launch(core_of, cores=3).results == [0, 1, 2]")


def test_errors_show_the_cells_line_and_none_of_our_frames(notebook):
    program = "def train():\n    if core_of() == 1: raise ValueError('bad')\n    meet()\n"
    answer = notebook.run(f"{program}xla.launch(train, cores=4)")
    assert answer.error == "RankError", answer.shown
    assert "core 1 of 4 raised ValueError: bad" in answer.shown
    assert re.search(r"Cell In\[\d+\], line 2, in train", answer.shown)
    assert "course_utils/" not in answer.shown

    program = "def train():\n    if core_of() != 1: meet()\n"
    answer = notebook.run(f"{program}xla.launch(train, cores=4, time_limit=2)")
    assert "cores 0, 2, 3 of 4 had not finished after the time limit of 2 s" in answer.shown
    assert "cores 0, 2, 3 wait for the value of a tensor here:" in answer.shown
    assert "core 1 had returned: a collective needs every core" in answer.shown
    assert re.search(r"Cell In\[\d+\], line \d+, in meet", answer.shown)
    assert "course_utils/" not in answer.shown


@pytest.mark.parametrize(
    "program", ["meet() if core_of() else time.sleep(60)", "while True: meet()"]
)
def test_interrupt(notebook, program):
    request = notebook.send(f"def train():\n    {program}\nxla.launch(train, cores=4)")
    assert eventually(lambda: notebook.ranks() and notebook.ranks()[0].num_threads() > 4)
    time.sleep(0.5)
    process = notebook.ranks()
    notebook.interrupt(request)
    assert not gone(process)


@pytest.mark.slow
def test_restarted_in_mid_run_then_killed(fresh):
    for end in (fresh.restart, lambda: os.kill(fresh.process.pid, signal.SIGKILL)):
        fresh.run(SETUP)
        program = "def train():\n    while True: meet()\n"
        fresh.send(f"{program}xla.launch(train, cores=4, time_limit=None)")
        assert eventually(lambda: fresh.ranks() and fresh.ranks()[0].num_threads() > 4)
        before = fresh.process.children(recursive=True)
        end()
        assert not gone(before)
