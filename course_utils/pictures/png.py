"""A matplotlib figure as a small PNG: transparent, at twice the pixels, at most 255 colours."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = 255  # text and a dozen hues need no more, and a notebook's outputs stay a quarter of the size


def to_png(figure: Figure) -> bytes:
    """The bytes of `figure`, which must have `dpi=200` to be shown at `png_width`."""
    from PIL import Image  # comes with matplotlib

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", transparent=True)
    image = Image.open(full).quantize(COLORS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    image.save(small, format="png", optimize=True)
    return small.getvalue()


def png_width(image: bytes) -> int:
    """Width in px at which a PNG of `to_png` is to be shown."""
    return int.from_bytes(image[16:20], "big") // 2
