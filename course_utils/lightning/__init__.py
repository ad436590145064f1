"""What the course adds to Lightning: `from course_utils.lightning import LiveCallback, Witness, quiet, use_cores`.

`callbacks.py` looks into a running trainer; `cores.py` puts the course's cores behind `accelerator="tpu"`.
"""

from .callbacks import LiveCallback, Witness, quiet
from .cores import use_cores

__all__ = ["LiveCallback", "Witness", "quiet", "use_cores"]
