"""A function from a notebook cell on several real processes, and its results, metrics, output and errors back.

Start with `launch.py`; then, on the way there `arguments`, `server`, `processes`, in the rank `rank`, `session`,
`spans`, `traffic`, and on the way back `heard`, `failures`, `run`, `noted`; `carry_out.py` holds all of it
together, `stopping.py` interrupts it.
"""

from .launch import launch
from .run import Run
from .server import warm_up
from .session import report
from .spans import span
from .traffic import Traffic

__all__ = ["Run", "Traffic", "launch", "report", "span", "warm_up"]
