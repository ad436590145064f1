"""Who has which part of something, as little squares: a row a rank, filled where the part is that rank's."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence

from .. import style
from .picture import Picture, heading

SIDE, GAP = 13, 2  # px of a square, and between two


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
