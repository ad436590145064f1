"""What `launch` would run, as a script for the machines that a notebook does not reach.

`script.py` fills the texts beside it; `needed.py` finds what a function needs; `dist_utils.py` lies
beside every script, as it is here.
"""

from .script import export

__all__ = ["export"]
