"""A function from a notebook cell on several real processes, and its results, metrics, output and errors back.

Read `launch.py`, then `crew.py`, the processes seen from the notebook, then `rank.py`, one of them from the inside.
"""

from .launch import launch
from .report import report
from .run import Run
from .server import warm_up
from .spans import span
from .traffic import Traffic

__all__ = ["Run", "Traffic", "launch", "report", "span", "warm_up"]
