"""Pictures for notebooks: they follow the page's theme, carry a text for screen readers and need no kernel to stay."""

from .collective import collective
from .curves import curves_png
from .explorer import explorer
from .gantt import gantt, pipelines
from .matmul import matmul
from .picture import Picture, player
from .tables import bars, shares, table

__all__ = [
    "Picture",
    "bars",
    "collective",
    "curves_png",
    "explorer",
    "gantt",
    "matmul",
    "pipelines",
    "player",
    "shares",
    "table",
]
