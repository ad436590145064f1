"""Bars, tables, and who has which part of something, as HTML that follows the page's theme."""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence

from .. import style
from ..style import number
from .picture import Picture, heading

SIDE, GAP = 13, 2  # px of a square, and between two


def bars(values: Mapping[str, float], *, title: str = "", unit: str = "") -> Picture:
    """Horizontal bars from zero with their values, one per name."""
    most = max(values.values()) or 1
    rows = "".join(
        f'<div style="text-align:right">{html.escape(name)}</div>'
        f'<div style="display:flex;align-items:center;gap:6px"><div style="height:16px;border-radius:2px;'
        f"width:calc({100 * value / most:.1f}% * .78);min-width:1px;"
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


def shares(panels: Mapping[str, Sequence[Collection[int]]], *, of: int, columns: int = 0, title: str = "") -> Picture:
    """Panels beside each other: {title: the numbers 0 to `of` - 1 that each rank has, by rank}.

    Args:
        of: how many parts there are.
        columns: squares in a line; by default all of them.
    """
    drawn, said = "", []
    for name, by_rank in panels.items():
        rows = "".join(_row(rank, mine, of, columns or of) for rank, mine in enumerate(by_rank))
        drawn += f'<div><div style="font-weight:600;padding-bottom:2px">{html.escape(name)}</div>{rows}</div>'
        said.append(f"{name}: " + "; ".join(f"rank {r} has {_listed(mine, of)}" for r, mine in enumerate(by_rank)))
    alt = f"{title + '. ' if title else ''}{'. '.join(said)}."
    panes = f'<div style="display:flex;flex-wrap:wrap;gap:10px 28px">{drawn}</div>'
    return Picture(f'<div {style.alt(alt)} style="{style.BOX}">{heading(title)}{panes}</div>', alt)


def _row(rank: int, mine: Collection[int], of: int, columns: int) -> str:
    square = f"width:{SIDE}px;height:{SIDE}px;box-sizing:border-box;border-radius:2px"
    full, empty = f"background:{style.RANK[rank % len(style.RANK)]}", f"border:1px solid {style.GREY}"
    squares = "".join(f'<div style="{square};{full if i in mine else empty}"></div>' for i in range(of))
    grid = f"display:grid;grid-template-columns:repeat({columns},{SIDE}px);gap:{GAP}px"
    name = f'<div style="width:46px">rank {rank}</div>'
    return f'<div style="display:flex;align-items:center;padding:2px 0">{name}<div style="{grid}">{squares}</div></div>'


def _listed(mine: Collection[int], of: int) -> str:
    return "all" if len({*mine}) == of else ", ".join(map(str, sorted(mine))) or "none"
