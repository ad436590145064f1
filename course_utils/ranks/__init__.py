"""A function from a notebook cell on several real processes, and its results, metrics, output and errors back.

`launch.py` checks the call, `crew.py` starts and hears the processes, `rank.py` is what happens inside one.
"""

from .launch import launch
from .report import report
from .run import Run
from .server import warm_up
from .spans import span
from .traffic import Traffic

__all__ = ["Run", "Traffic", "launch", "report", "span", "warm_up"]
