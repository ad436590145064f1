"""A TPU's cores from a notebook cell, the real ones or as many virtual ones: `from course_utils import xla`. No torch.

Start with `launch.py`; `process.py` is their process seen from the notebook, `core.py` what happens inside, and
`replicas.py` what lets several cores be threads on XLA's CPU client, `tpu.py` what only a real TPU needs. `counters`
and `sharding` read torch_xla.
"""

from .counters import Counters, counters
from .launch import launch, setup, tolerance
from .sharding import Sharding, sharding
from .tpu import give_back

__all__ = ["Counters", "Sharding", "counters", "give_back", "launch", "setup", "sharding", "tolerance"]
