"""Pictures for notebooks: they follow the page's theme, carry a text for screen readers and need no kernel to stay.

Start with `picture.py`. `gantt.py` draws timelines, players and `explorer.py` are alive in the page (their .js lies
beside them), `curves.py` is what live plots (`live.py`) are made of; `board.py` shows what was measured.
"""

from .collective import collective
from .curves import curves_png
from .explorer import explorer
from .gantt import gantt, pipelines
from .matmul import matmul
from .picture import Picture, player
from .tables import bars, shares, table

__all__ = ["Picture", "bars", "collective", "curves_png", "explorer", "gantt", "matmul", "pipelines",
           "player", "shares", "table"]
