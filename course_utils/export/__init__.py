"""A function from a notebook cell as a script of its own, for `torchrun`, Slurm, Kubernetes: `launch.export`.

Start with `export.py`; `collect.py` finds what the function needs from other cells and modules, `standins.py` among
them, which has plain torch in place of the course's own functions; `script.py` writes it down as one file, and
`beside.py` the files that clusters ask for.
"""

from .export import export

__all__ = ["export"]
