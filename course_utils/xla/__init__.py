"""A TPU's cores from a notebook cell, real or as many virtual ones. Importing it needs no torch.

Start with `launcher.py`: `core.py` is inside the cores' process, `replicas.py` makes them threads,
`debug.py` asks torch_xla what it did.
"""

from .debug import Counters, collectives, counters, sharding
from .launcher import launch, setup, tolerance

__all__ = ["Counters", "collectives", "counters", "launch", "setup", "sharding", "tolerance"]
