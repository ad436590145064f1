"""Bars and tables as HTML that follows the page's theme."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

from .. import style
from ..style import number
from .picture import Picture, heading


def bars(values: Mapping[str, float], *, title: str = "", unit: str = "") -> Picture:
    """Horizontal bars from zero with their values, one per name."""
    most = max(filter(math.isfinite, values.values()), default=0) or 1
    rows = "".join(
        f'<div style="text-align:right">{html.escape(name)}</div>'
        f'<div style="display:flex;align-items:center;gap:6px"><div style="height:16px;border-radius:2px;'
        f"width:calc({max(0.0, 100 * value / most) if math.isfinite(value) else 0:.1f}% * .78);min-width:1px;"
        f'background:{style.RANK[0]}"></div>'
        f'<div style="white-space:nowrap;font-weight:600">{number(value)} {html.escape(unit)}</div></div>'
        for name, value in values.items()
    )
    alt = f"{title}: " + ", ".join(f"{name} {number(value)} {unit}".strip() for name, value in values.items())
    grid = "display:grid;grid-template-columns:max-content 1fr;gap:5px 10px;align-items:center"
    page = f'<div {style.alt(alt)} style="{style.BOX}">{heading(title)}<div style="{grid}">{rows}</div></div>'
    return Picture(page, alt)


def table(rows: Iterable[Sequence[object]], header: Sequence[object], *, title: str = "") -> Picture:
    """A plain table; numbers are shortened and stand right. Its repr is the same table as text."""
    rows, head = [*rows], [*map(str, header)]
    cells = [[number(c) if isinstance(c, float) else f"{c:,}" if type(c) is int else str(c) for c in r] for r in rows]
    right = [any(isinstance(row[i], (int, float)) for row in rows) for i in range(len(head))]
    look = "padding:3px 12px;border-bottom:1px solid rgba(128,128,128,.35);text-align"

    def line(texts: Sequence[str], tag: str) -> str:
        sides = ("right" if numbers else "left" for numbers in right)
        row = zip(texts, sides, strict=True)
        return "<tr>" + "".join(f'<{tag} style="{look}:{side}">{html.escape(t)}</{tag}>' for t, side in row) + "</tr>"

    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    text = [
        "  ".join(t.rjust(w) if numbers else t.ljust(w) for t, w, numbers in zip(row, widths, right, strict=True))
        for row in (head, *cells)
    ]
    caption = f'<caption style="text-align:left;font-weight:600;color:inherit">{html.escape(title)}</caption>'
    return Picture(
        f'<table style="border-collapse:collapse;font:{style.TEXT}px {style.FONT};color:inherit">'
        f"{caption if title else ''}<thead>{line(head, 'th')}</thead>"
        f"<tbody>{''.join(line(row, 'td') for row in cells)}</tbody></table>",
        "\n".join(filter(None, [title, *(row.rstrip() for row in text)])),
    )
