"""Pictures for notebooks that follow the page's theme, carry a text for screen readers and need no kernel to stay."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _curves, style
from ._axes import text_of
from ._png import png_width

if TYPE_CHECKING:
    from .timeline import Timeline


class Picture:
    """Something to look at; the last line of a cell shows it. Its repr is the text that describes it."""

    def __init__(self, html: str, alt: str, *, png: bytes | None = None) -> None:
        self.html, self.alt, self.png = html, alt, png

    def __repr__(self) -> str:
        return self.alt

    def _repr_html_(self) -> str | None:
        return None if self.png else self.html

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]] | None:
        return (self.png, {"width": png_width(self.png), "alt": self.alt}) if self.png else None


def curves_svg(panels: _curves.Panels, *, alt: str, title: str = "", x_title: str = "step", total: float | None = None,
               log_x: bool = False, log_y: bool = False, markers: bool = False) -> Picture:
    """Curves, a panel each: {panel: {rank or name: (x values, y values)}}; panels side by side, one legend."""
    return Picture(_curves.svg(panels, alt=alt, title=title, x_title=x_title, total=total, log_x=log_x, log_y=log_y,
                               markers=markers), alt)


def curves_png(panels: _curves.Panels, *, alt: str, title: str = "", x_title: str = "step", total: float | None = None,
               log_x: bool = False, log_y: bool = False, markers: bool = False, foot: str = "") -> Picture:
    """The same as a PNG, which every viewer of notebooks shows; `foot` is a line below."""
    png = _curves.png(panels, title=title, x_title=x_title, total=total, log_x=log_x, log_y=log_y, markers=markers,
                      foot=foot)
    return Picture(f"<p>{html.escape(alt)}</p>", alt, png=png)


def gantt(timeline: Timeline) -> Picture:
    """A row per rank, a thinner one below it for each further lane; see `Timeline`, which draws itself with this."""
    from ._gantt import draw

    png, alt = draw(timeline)
    return Picture("", alt, png=png)


def player(frames: Iterable[object], *, title: str, alt: str, captions: Sequence[str] | None = None) -> Picture:
    """Frames to step through with buttons, a slider or the arrow keys; works in a saved page with no kernel.

    Args:
        frames: pictures, timelines, or HTML or SVG strings; without JavaScript the first one is shown.
        captions: a line below each frame.
    """
    from ._player import draw

    parts = [frame if isinstance(frame, str) else _as_html(frame) for frame in frames]
    return Picture(draw(parts, title=title, alt=alt, captions=captions), f"{title}: {alt}")


def _as_html(frame: object) -> str:
    """Whatever draws itself, as HTML: pictures, timelines, tables."""
    if shown := getattr(frame, "_repr_html_", lambda: None)():
        return shown
    png, look = frame._repr_png_()
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<img src="{source}" width="{look["width"]}" alt="{html.escape(look["alt"], quote=True)}">'


def bars(values: Mapping[str, float], *, title: str = "", unit: str = "", alt: str = "",
         colors: Mapping[str, str] | None = None) -> Picture:
    """Horizontal bars from zero with their values, one per name; `colors` maps a name to a role or a colour."""
    most = max((v for v in values.values() if v - v == 0), default=0) or 1
    alt = alt or f"{title}: " + ", ".join(f"{name} {text_of(v)} {unit}".strip() for name, v in values.items())
    rows = []
    for i, (name, value) in enumerate(values.items()):
        wanted = (colors or {}).get(name, style.RANK[0] if colors is None else style.color(name, i))
        part = max(0.0, 100 * value / most) if value - value == 0 else 0
        rows.append(
            f'<div style="text-align:right">{html.escape(name)}</div>'
            f'<div style="display:flex;align-items:center;gap:6px"><div style="height:16px;border-radius:2px;'
            f'width:calc({part:.1f}% * .78);min-width:1px;background:{style.ROLE.get(wanted, wanted)}"></div>'
            f'<div style="white-space:nowrap;font-weight:600">{text_of(value)} {html.escape(unit)}</div></div>'
        )
    return Picture(
        f'<div {style.alt(alt)} style="max-width:{style.WIDTH}px;font:{style.TEXT}px {style.FONT};padding:4px 8px">'
        + (f'<div style="font-weight:600;padding-bottom:6px">{html.escape(title)}</div>' if title else "")
        + '<div style="display:grid;grid-template-columns:max-content 1fr;gap:5px 10px;align-items:center">'
        + "".join(rows) + "</div></div>", alt)


def table(rows: Iterable[Sequence[object]], header: Sequence[str], *, title: str = "", alt: str = "") -> Picture:
    """A plain table; numbers are shortened and stand right. Its repr is the same table as text."""
    body = [list(row) for row in rows]
    cells = [[text_of(c) if isinstance(c, float) else f"{c:,}" if type(c) is int else str(c) for c in r] for r in body]
    sides = ["right" if any(isinstance(row[i], (int, float)) for row in body) else "left" for i in range(len(header))]
    look = "padding:3px 12px;border-bottom:1px solid rgba(128,128,128,.35);text-align"

    def line(texts: Sequence[str], tag: str) -> str:
        row = zip(texts, sides, strict=True)
        return "<tr>" + "".join(f'<{tag} style="{look}:{side}">{html.escape(t)}</{tag}>' for t, side in row) + "</tr>"

    head = [str(h) for h in header]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    text = [
        "  ".join(t.rjust(w) if side == "right" else t.ljust(w) for t, w, side in zip(row, widths, sides, strict=True))
        for row in (head, *cells)
    ]
    says = f' aria-label="{html.escape(alt, quote=True)}"' if alt else ""
    caption = f'<caption style="text-align:left;font-weight:600;color:inherit">{html.escape(title)}</caption>'
    return Picture(
        f'<table style="border-collapse:collapse;font:{style.TEXT}px {style.FONT};color:inherit"{says}>'
        f"{caption if title else ''}<thead>{line(head, 'th')}</thead>"
        f"<tbody>{''.join(line(row, 'td') for row in cells)}</tbody></table>",
        "\n".join(filter(None, [title or alt, *(row.rstrip() for row in text)])),
    )
