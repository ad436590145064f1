"""Bars and tables as HTML that follows the page's theme."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from .. import style
from .axes import text_of
from .picture import Picture


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
