"""What this machine has: cores and memory within its limits, devices, where it runs; and one device of it, `pick()`.

Start with `devices.py`; `machine.py` is what it finds, `card.py` what that looks like. torch is imported when asked.
"""

from .devices import discover, pick
from .machine import Machine
from .probe import Device

__all__ = ["Device", "Machine", "discover", "pick"]
