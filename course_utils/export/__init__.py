"""`export`: a cell's function as a script. `dist_utils.py` lies beside every script, as it is here."""

from .export import export

__all__ = ["export"]
