"""A function of a notebook cell on several processes; its results, metrics, output, errors back.

`launcher.py` checks the call, `processes.py` starts and ends processes, `supervisor.py` listens to
them, `rank.py` is what happens inside one, and `wire.py` holds what travels between them.
"""

from .launcher import launch
from .metrics import report
from .run import Run
from .server import warm_up
from .spans import span
from .traffic import Traffic

__all__ = ["Run", "Traffic", "launch", "report", "span", "warm_up"]
