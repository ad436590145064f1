"""What a picture is: something that a cell's last line shows, with a text for screen readers; as
HTML or as a PNG.

HTML follows the page's theme and may bring a script. Every viewer of notebooks shows a PNG: draw
with matplotlib on `blank(width, height)`, or in px on a `sheet`, in `style.GREY` where text has no
box behind it, then `Picture("", alt, png=to_png(figure))`.
"""

import html
import io
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import style

# Of a PNG's text: px at 100 dpi -> points.
FONTS: dict[str, Any] = {"color": style.GREY, "fontsize": style.TEXT * 0.72}
HEADING = FONTS | {"fontsize": 9.7, "fontweight": "bold"}
# Fonts that are used where they are installed and the first has no glyph.
FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Microsoft YaHei",
    "Hiragino Sans GB",
    "Arial Unicode MS",
    "Noto Emoji",
    "Segoe UI Emoji",
)
SMALL = style.SMALL * 0.72
PLACE = 4  # px; a text takes several, each alone
LINE = 18  # px of a line of it above or below a chart


class Picture:
    """Something to look at; the last line of a cell shows it. Its repr is its text."""

    def __init__(self, html: str, alt: str, *, png: bytes | None = None) -> None:
        self.html, self.alt, self.png = html, alt, png

    def __repr__(self) -> str:
        return self.alt

    def _repr_html_(self) -> str | None:
        return self.html or None

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]] | None:
        return (self.png, png_metadata(self.png, self.alt)) if self.png else None


def png_metadata(png: bytes, alt: str) -> dict[str, Any]:
    """What a notebook keeps beside a PNG: its width in px, half of what `to_png` drew, and its
    text.
    """
    return {"width": int.from_bytes(png[16:20], "big") // 2, "alt": alt}


def player(
    frames: Iterable[Picture | str], *, title: str, alt: str, captions: Sequence[str]
) -> Picture:
    """Frames (HTML, SVG) to step through with buttons, a slider or the arrow keys, each with a
    caption below it.

    It works in a saved page with no kernel; without JavaScript the first frame is shown, without
    the words in an SVG, and what to do.
    """
    pages = [frame if isinstance(frame, str) else frame.html for frame in frames]
    # Of an SVG that JupyterLab does not trust it shows the words alone.
    first = re.sub("<text.*?</text>", "", pages[0])
    alt = f"{title}: {alt}"
    data = {"frames": pages, "captions": [*captions]}
    # "</script>" inside a frame must not end the script that holds it.
    stored = json.dumps(data).replace("<", "\\u003c")
    return Picture(
        f'<div data-course-player {controls(alt)} style="{style.BOX}">{heading(title)}'
        f"<div data-stage>{first}</div>"
        f'<div data-line aria-live="polite" style="min-height:18px">1 of {len(pages)}: '
        f"{html.escape(captions[0])} (Run the cell to step through them.)</div>"
        f'<script type="application/json">{stored}</script>'
        f"<script>{script('player.js')}</script></div>",
        alt,
    )


def controls(alt: str) -> str:
    """Attributes of what holds controls: a group with this text, whose keys JupyterLab leaves to
    it.
    """
    label = html.escape(alt)
    return f'data-lm-suppress-shortcuts="true" role="group" aria-label="{label}"'


def heading(title: str) -> str:
    """The line above a picture in HTML; nothing without a title."""
    if not title:
        return ""
    return f'<div style="font-weight:600;padding-bottom:5px">{html.escape(title)}</div>'


def script(*names: str) -> str:
    """The JavaScript files beside this one, in a scope of their own: several copies on one page do
    not meet.
    """
    files = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in names)
    return f"(function () {{\n{''.join(files)}}})();\n"


def blank(width: float, height: float) -> Any:
    """A transparent figure of matplotlib of this size in px, at twice the pixels."""
    from matplotlib.figure import Figure  # no pyplot: no global state, safe in threads

    figure = Figure(figsize=(width / 100, height / 100), dpi=200)
    figure.set_layout_engine("none")  # not the one that the reader has set for own figures
    return figure


def sheet(width: float, height: float) -> Any:
    """Bare axes over all of such a figure, their `figure`, in px from the top left."""
    axes = blank(width, height).add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return axes


class Box(NamedTuple):
    """What is drawn of a part: left and wide in units of the x axis, top and high in px."""

    left: float
    wide: float
    top: float
    high: float
    fill: str
    edge: str
    text: str = ""


def draw_boxes(ax: Any, boxes: Iterable[Box], px: float = 1) -> None:
    """Boxes in a panel, with the texts that fit; `px`: pixels a unit of the x axis."""
    from matplotlib.collections import PolyCollection

    boxes = sorted(boxes, key=lambda box: -box.wide)  # what is inside another lies on top
    corners = []
    texts: dict[Box, range] = {}  # the places that each takes
    on_top: dict[tuple[float, int], Box] = {}  # by row and place
    for box in boxes:
        seam = 0.9 / px if box.wide * px > 4 else 0  # to the next box
        left, right = box.left, box.left + box.wide - seam
        low = box.top + box.high
        corners.append([(left, box.top), (right, box.top), (right, low), (left, low)])
        long = 6.5 * len(box.text)  # px
        if box.text and box.wide * px > long + 3 and box.high > 11:
            middle, half = (left + right) / 2 * px, long / 2
            texts[box] = range(int((middle - half) / PLACE), int((middle + half) / PLACE) + 1)
            on_top |= {(box.top, place): box for place in texts[box]}
    for box, places in texts.items():
        if any(on_top[box.top, place] != box for place in places):
            continue  # another text would be written into it
        ax.text(
            box.left + box.wide / 2,
            box.top + box.high / 2,
            box.text,
            ha="center",
            va="center_baseline",
            color=style.GREY if box.fill == "none" else style.ink(box.fill),
            fontsize=SMALL,
        )

    # One collection: an artist for each box would take matplotlib minutes.
    fills, edges = [box.fill for box in boxes], [box.edge for box in boxes]
    ax.add_collection(PolyCollection(corners, fc=fills, ec=edges, lw=0.7))


def write_around(
    figure: Any,
    title: str,
    legend: Mapping[str, tuple[Any, str]],
    foot: str,
    *,
    spacing: float = 2,
) -> None:
    """The title above what a figure shows; below it the legend, {text: (fill, edge)}, `spacing` ems
    apart, and lines of text.
    """
    from matplotlib.patches import Patch

    width, height = 100 * figure.get_size_inches()  # px
    figure.text(8 / width, 1 - 6 / height, title, va="top", **HEADING)
    figure.text(8 / width, 5 / height, foot, **FONTS)
    figure.legend(
        [Patch(fc=fill, ec=edge, lw=0.8) for fill, edge in legend.values()],
        legend,
        ncols=len(legend) or 1,
        loc="lower left",
        bbox_to_anchor=(4 / width, LINE * len(foot.splitlines()) / height),
        frameon=False,
        fontsize=FONTS["fontsize"],
        labelcolor=style.GREY,
        columnspacing=spacing,
        handlelength=0.9,
        handleheight=0.9,
        borderpad=0.2,
    )


def to_png(figure: Any) -> bytes:
    """The bytes of a figure that `blank` made; in 255 colours, which are enough, they are a quarter
    of the size.
    """
    from matplotlib.font_manager import fontManager
    from matplotlib.text import Text
    from PIL import Image  # comes with matplotlib

    installed = fontManager.get_font_names()
    fallbacks = [name for name in FALLBACKS if name in installed]
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a "$" is one
        text.set_fontfamily([*text.get_fontfamily(), *fallbacks])

    full, small = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():  # where no font has a glyph there is a box
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        # Of the size that it has, whatever the reader has set for own figures.
        fixed = {"dpi": "figure", "bbox_inches": figure.bbox_inches}
        figure.savefig(full, format="png", transparent=True, **fixed)
    Image.open(full).quantize(255).save(small, format="png", optimize=True)
    return small.getvalue()
