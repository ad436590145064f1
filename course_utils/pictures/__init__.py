"""Pictures for notebooks: they follow the page's theme, carry a text for screen readers and need no
kernel to stay.
"""

from .collectives import collective
from .curves import curves_png
from .gantt_chart import gantt, pipelines
from .picture import Picture, player
from .pipeline_explorer import explorer
from .tables import bars, shares, table

__all__ = [
    "Picture",
    "bars",
    "collective",
    "curves_png",
    "explorer",
    "gantt",
    "pipelines",
    "player",
    "shares",
    "table",
]
