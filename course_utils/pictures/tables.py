"""Bars, tables, and who has which part of something, as HTML that follows the page's theme."""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence

from .. import style
from .picture import Picture, heading

BAR = f"height:16px;border-radius:2px;min-width:1px;background:{style.RANK[0]}"
BARS = "display:grid;grid-template-columns:max-content 1fr;gap:5px 10px;align-items:center"


def bars(values: Mapping[str, float], *, title: str = "", unit: str = "") -> Picture:
    """Horizontal bars from zero with their values, one per name."""
    most = max(values.values()) or 1
    rows = ""
    said = []
    for name, value in values.items():
        text = f"{style.number(value)} {unit}".strip()
        bar = f'<div style="{BAR};width:{78 * value / most:.1f}%"></div>'
        rows += (
            f'<div style="text-align:right">{html.escape(name)}</div>'
            f'<div style="display:flex;align-items:center;gap:6px">{bar}'
            f'<div style="white-space:nowrap;font-weight:600">{html.escape(text)}</div></div>'
        )
        said.append(f"{name} {text}")
    return _boxed(f'<div style="{BARS}">{rows}</div>', title, f"{title}: {', '.join(said)}")


def _boxed(page: str, title: str, alt: str) -> Picture:
    """A page below its title, one picture with this text for screen readers."""
    return Picture(f'<div {style.alt(alt)} style="{style.BOX}">{heading(title)}{page}</div>', alt)


TABLE = f"border-collapse:collapse;font:{style.TEXT}px {style.FONT};color:inherit"
CAPTION = "text-align:left;font-weight:600;color:inherit"
CELL = "padding:3px 12px;border-bottom:1px solid rgba(128,128,128,.35)"


def table(
    rows: Iterable[Sequence[object]], header: Sequence[object], *, title: str = ""
) -> Picture:
    """A plain table; numbers stand right, shortened; a cell may be a `Picture`. Its repr is the
    same table as text.
    """
    rows = [[*map(str, header)], *rows]
    cells = [[_text(cell) for cell in row] for row in rows]
    right = [
        any(isinstance(cell, (int, float)) for cell in column) for column in zip(*rows, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    page = []
    said = [title] if title else []
    for row, texts in zip(rows, cells, strict=True):
        tag = "td" if page else "th"
        drawn = ""
        line = []
        for cell, text, number, width in zip(row, texts, right, widths, strict=True):
            look = f"{CELL};text-align:{'right' if number else 'left'}"
            shown = cell.html if isinstance(cell, Picture) else html.escape(text)
            drawn += f'<{tag} style="{look}">{shown}</{tag}>'
            line.append(text.rjust(width) if number else text.ljust(width))
        page.append(f"<tr>{drawn}</tr>")
        said.append("  ".join(line).rstrip())

    caption = f'<caption style="{CAPTION}">{html.escape(title)}</caption>' if title else ""
    first, *others = page
    return Picture(
        f'<table style="{TABLE}">{caption}<thead>{first}</thead>'
        f"<tbody>{''.join(others)}</tbody></table>",
        "\n".join(said),
    )


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return style.number(cell)
    return f"{cell:,}" if type(cell) is int else str(cell)


SQUARE = "width:13px;height:13px;box-sizing:border-box;border-radius:2px"
LINE = "display:flex;align-items:center;padding:4px 0"


def shares(
    panels: Mapping[str, Sequence[Collection[int]]], *, of: int, columns: int = 0, title: str = ""
) -> Picture:
    """Panels: {title: the numbers 0 to `of` - 1 that each rank has}, `columns` squares in a line;
    beside each other, or where they are too wide, below each other, so that columns compare.
    """
    grid = f"display:grid;grid-template-columns:repeat({columns or of},13px);gap:2px"
    empty = f'<div style="{SQUARE};border:1px solid {style.GREY}"></div>'
    drawn = ""
    said = [f"{title}."] if title else []
    for name, by_rank in panels.items():
        lines = ""
        words = []
        for rank, mine in enumerate(by_rank):
            full = f'<div style="{SQUARE};background:{style.color(rank)}"></div>'
            squares = "".join(full if i in mine else empty for i in range(of))
            lines += (
                f'<div style="{LINE}"><div style="width:46px">rank {rank}</div>'
                f'<div style="{grid}">{squares}</div></div>'
            )
            has = ", ".join(map(str, sorted(mine))) or "none"
            if len({*mine}) == of:
                has = "all"
            words.append(f"rank {rank} has {has}")

        heads = f'<div style="font-weight:600;padding-bottom:2px">{html.escape(name)}</div>'
        drawn += f"<div>{heads}{lines}</div>"
        said.append(f"{name}: {'; '.join(words)}.")

    wide = len(panels) * (74 + 15 * (columns or of))  # px
    flow = "column" if wide > 800 else "row"
    panes = f'<div style="display:flex;flex-flow:{flow} wrap;gap:10px 28px">{drawn}</div>'
    return _boxed(panes, title, " ".join(said))
