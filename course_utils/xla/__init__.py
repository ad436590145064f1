"""A TPU's cores from a notebook cell, the real ones or as many virtual ones: `from course_utils import xla`. No torch.

Start with `launch.py`; `core.py` is what happens inside the cores' process, and `replicas.py` what lets several cores
be threads on XLA's CPU client. `readings.py` asks torch_xla what it did.
"""

from .launch import launch, setup, tolerance
from .readings import Counters, counters, sharding

__all__ = ["Counters", "counters", "launch", "setup", "sharding", "tolerance"]
