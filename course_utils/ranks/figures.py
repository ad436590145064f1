"""matplotlib's backend in a rank, where `plt.show()` has no page to draw on."""

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

from .page import RETURN_IT

__all__ = ["FigureCanvas", "show"]


def show(*_: Any, **__: Any) -> None:
    print("plt.show()", RETURN_IT)
