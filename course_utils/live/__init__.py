"""Curves that grow while a loop or ranks run, at two percent of a core, and stay in the notebook as a PNG.

Start with `plot.py`: `values.py` is what came, `files.py` reads what a run elsewhere writes, `progress.py` is how far
it is, `screen.py` the cell it is drawn in; `slots.py` holds what a run shows and prints, for the next to write over.
`kept.py` remembers what was measured, and `board.py` shows it.
"""

from .board import Board, my_board
from .plot import LivePlot, live

__all__ = ["Board", "LivePlot", "live", "my_board"]
