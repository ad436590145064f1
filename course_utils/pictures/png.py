"""What matplotlib figures share: the size in px, the look, and the small PNG, of at most 255 colours."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from .. import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = 255  # text and a dozen hues need no more, and a notebook's outputs stay a quarter of the size
FONTS = {"color": style.GREY, "fontsize": style.TEXT * 0.72}  # px at 100 dpi -> points


def blank(width: int, height: int) -> Figure:
    """A transparent figure of this size in px, at twice the pixels."""
    from matplotlib.figure import Figure  # no pyplot: no global state, safe in threads

    return Figure(figsize=(width / 100, height / 100), dpi=200, facecolor="none")


def gridlines(ax: Axes, axis: str) -> None:
    """Grey lines across the `axis`, "x" or "y", behind all else, in place of the frame and the ticks."""
    ax.tick_params(length=0)
    ax.grid(axis=axis, color=style.GREY, alpha=0.3, lw=0.7)
    ax.set_axisbelow(True)
    ax.spines[:].set_visible(False)


def to_png(figure: Figure) -> bytes:
    """The bytes of a figure that `blank` made."""
    from PIL import Image  # comes with matplotlib

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", transparent=True)
    image = Image.open(full).quantize(COLORS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    image.save(small, format="png", optimize=True)
    return small.getvalue()


def png_width(image: bytes) -> int:
    """Width in px at which a PNG of `to_png` is to be shown."""
    return int.from_bytes(image[16:20], "big") // 2
