"""A TPU's cores from a notebook cell, the real ones or as many virtual ones: `from course_utils import xla`. No torch.

Start with `launch.py`; `core.py` is what happens inside the cores' process, and `replicas.py` what lets several cores
be threads on XLA's CPU client. `counters` and `sharding` read torch_xla.
"""

from .counters import Counters, counters
from .launch import give_back, launch, setup, tolerance
from .sharding import Sharding, sharding

__all__ = ["Counters", "Sharding", "counters", "give_back", "launch", "setup", "sharding", "tolerance"]
