"""Bars, tables, and who has which part of something, as HTML that follows the page's theme."""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence

from .. import style
from .picture import Picture, heading


def bars(values: Mapping[str, float], *, title: str = "", unit: str = "") -> Picture:
    """Horizontal bars from zero with their values, one per name."""
    most = max(values.values()) or 1
    rows, said = "", []
    for name, value in values.items():
        text = f"{style.number(value)} {unit}".strip()
        bar = f"height:16px;border-radius:2px;width:{78 * value / most:.1f}%;min-width:1px;background:{style.RANK[0]}"
        rows += (
            f'<div style="text-align:right">{html.escape(name)}</div>'
            f'<div style="display:flex;align-items:center;gap:6px"><div style="{bar}"></div>'
            f'<div style="white-space:nowrap;font-weight:600">{html.escape(text)}</div></div>'
        )
        said.append(f"{name} {text}")
    alt = f"{title}: {', '.join(said)}"
    grid = "display:grid;grid-template-columns:max-content 1fr;gap:5px 10px;align-items:center"
    return Picture(
        f'<div {style.alt(alt)} style="{style.BOX}">{heading(title)}<div style="{grid}">{rows}</div></div>',
        alt,
    )


def table(
    rows: Iterable[Sequence[object]], header: Sequence[object], *, title: str = ""
) -> Picture:
    """A plain table; numbers stand right, shortened; a cell may be a `Picture`. Its repr is the same table as text."""
    rows, head = [*rows], [*map(str, header)]
    cells = [
        [
            style.number(cell)
            if isinstance(cell, float)
            else f"{cell:,}"
            if type(cell) is int
            else str(cell)
            for cell in row
        ]
        for row in rows
    ]
    right = [any(isinstance(row[i], (int, float)) for row in rows) for i in range(len(head))]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    page, said = [], [title] * bool(title)
    for row, texts in zip((head, *rows), (head, *cells), strict=True):
        tag, drawn, line = "th" if texts is head else "td", "", []
        for cell, text, numbers, width in zip(row, texts, right, widths, strict=True):
            shown = cell.html if isinstance(cell, Picture) else html.escape(text)
            look = "padding:3px 12px;border-bottom:1px solid rgba(128,128,128,.35);text-align"
            drawn += f'<{tag} style="{look}:{"right" if numbers else "left"}">{shown}</{tag}>'
            line.append(text.rjust(width) if numbers else text.ljust(width))
        page.append(f"<tr>{drawn}</tr>")
        said.append("  ".join(line).rstrip())
    caption = f'<caption style="text-align:left;font-weight:600;color:inherit">{html.escape(title)}</caption>'
    return Picture(
        f'<table style="border-collapse:collapse;font:{style.TEXT}px {style.FONT};color:inherit">'
        f"{caption * bool(title)}<thead>{page[0]}</thead><tbody>{''.join(page[1:])}</tbody></table>",
        "\n".join(said),
    )


def shares(
    panels: Mapping[str, Sequence[Collection[int]]], *, of: int, columns: int = 0, title: str = ""
) -> Picture:
    """Panels beside each other: {title: the numbers 0 to `of` - 1 that each rank has}, `columns` squares in a line."""
    square = "width:13px;height:13px;box-sizing:border-box;border-radius:2px"
    grid = f"display:grid;grid-template-columns:repeat({columns or of},13px);gap:2px"
    drawn, said = "", []
    for name, by_rank in panels.items():
        drawn += f'<div><div style="font-weight:600;padding-bottom:2px">{html.escape(name)}</div>'
        words = []
        for rank, mine in enumerate(by_rank):
            looks = f"border:1px solid {style.GREY}", f"background:{style.color(rank)}"
            squares = "".join(f'<div style="{square};{looks[i in mine]}"></div>' for i in range(of))
            drawn += (
                f'<div style="display:flex;align-items:center;padding:2px 0"><div style="width:46px">rank {rank}'
                f'</div><div style="{grid}">{squares}</div></div>'
            )
            has = "all" if len({*mine}) == of else ", ".join(map(str, sorted(mine))) or "none"
            words.append(f"rank {rank} has {has}")
        drawn += "</div>"
        said.append(f"{name}: {'; '.join(words)}.")
    alt = " ".join([f"{title}."] * bool(title) + said)
    panes = f'<div style="display:flex;flex-wrap:wrap;gap:10px 28px">{drawn}</div>'
    return Picture(f'<div {style.alt(alt)} style="{style.BOX}">{heading(title)}{panes}</div>', alt)
