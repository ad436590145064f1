"""Curves that grow while a loop or ranks run, at two percent of a core, and stay in the notebook as a PNG.

Start with `plot.py`: `values.py` is what came, `progress.py` how far it is, `screen.py` the cell it is drawn in.
"""

from .plot import LivePlot, live

__all__ = ["LivePlot", "live"]
