"""A TPU's cores from a notebook cell, the real ones or as many virtual ones: `from course_utils import xla`. No torch.

Start with `launch.py`; `process.py` is their process seen from the notebook, `core.py` what happens inside, and
`replicas.py` what lets several cores be threads on XLA's CPU client. `counters` and `sharding` read torch_xla.
"""

from .counters import Counters, counters
from .launch import launch, setup
from .sharding import Sharding, sharding

__all__ = ["Counters", "Sharding", "counters", "launch", "setup", "sharding"]
