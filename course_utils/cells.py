"""Where a line of code is, as a reader of a notebook knows it: the cell, the line, and what stands there."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from pathlib import Path

Frame = tuple[str, int, str]  # file, line, function
PACKAGE = str(Path(__file__).parent.parent)
NOT_THEIRS = ("<", PACKAGE, sysconfig.get_paths()["stdlib"])


def cell_name(file: str) -> str | None:
    """`Cell In[7]` for the file name under which IPython compiled a cell; None for any other file."""
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        count = getattr(shell.compile, "_filename_map", {}).get(file)
        if count is not None:
            return f"Cell In[{count}]"
    return "Cell" if "/ipykernel_" in file or file.startswith("<ipython-input") else None


def place(frame: Frame) -> str:
    """`Cell In[7], line 4, in train` and the source line under it."""
    file, line, function = frame
    where = cell_name(file) or Path(file).name
    function = "" if function == "<module>" else f", in {function}"
    source = linecache.getline(file, line).strip()
    return f"  {where}, line {line}{function}" + (f"\n      {source}" if source else "")


def own_frames(frames: list[Frame]) -> list[Frame]:
    """The frames a learner wrote: those in cells, else those outside of installed packages; outermost first."""
    cells = [f for f in frames if cell_name(f[0])]
    return cells or [f for f in frames if "site-packages" not in f[0] and not f[0].startswith(NOT_THEIRS)]
