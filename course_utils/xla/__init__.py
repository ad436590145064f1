"""A TPU's cores from a notebook cell, real or as many virtual ones. No torch. Start with `launch.py`: `core.py`
is inside the cores' process, `replicas.py` makes them threads, `readings.py` asks torch_xla what it did.
"""

from .launch import launch, setup, tolerance
from .readings import Counters, counters, sharding

__all__ = ["Counters", "counters", "launch", "setup", "sharding", "tolerance"]
