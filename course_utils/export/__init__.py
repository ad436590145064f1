"""A function from a notebook cell as a script of its own, for `torchrun`, Slurm, Kubernetes: `launch.export`.

Start with `export.py`; `collect.py` finds what the function needs from other cells with the statements of `sources.py`
and the values of `literal.py`, `script.py` writes it down, `beside.py` the files that clusters ask for.
"""

from .export import export

__all__ = ["export"]
