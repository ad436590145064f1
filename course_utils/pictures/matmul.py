"""A matrix product split over ranks, to click through: what each rank holds of x, of A and of y = x A."""

from __future__ import annotations

from .. import style
from ..theory.matmul import Matrix, steps
from .picture import Picture
from .player import player


def matmul(split: str, ranks: int = 2) -> Picture:
    """The steps of a "column" or "row" split to click or play through; needs no kernel once it is there."""
    frames = steps(split, ranks)
    alt = f"x times A on {ranks} ranks. " + " ".join(f"{i}: {frame.text}" for i, frame in enumerate(frames))
    drawn = ["".join(map(_row, range(ranks), frame.held)) for frame in frames]
    return player(drawn, title=f"A {split} split over {ranks} ranks", alt=alt, captions=[f.text for f in frames])


def _row(rank: int, held: tuple[Matrix, Matrix, Matrix]) -> str:
    """One rank: x, A and y; what it holds in its colour, dots for the rest."""
    color = style.RANK[rank]
    x, a, y = (_table(matrix, color) for matrix in held)
    return (
        f'<div style="display:flex;align-items:center;gap:10px;padding:4px 0;font:{style.TEXT}px {style.FONT}">'
        f'<div style="font-weight:600;width:48px">rank {rank}</div>'
        f"{x}<div>·</div>{a}<div>=</div>{y}</div>"
    )


def _table(matrix: Matrix, color: str) -> str:
    def cell(n: int | None) -> str:
        look = f"background:{color};color:{style.ink(color)}" if n is not None else f"border:1px dotted {style.GREY}"
        size = "width:22px;height:20px;line-height:20px;box-sizing:border-box;text-align:center"
        return f'<div style="{size};{look}">{"" if n is None else n}</div>'

    cells = "".join(cell(n) for row in matrix for n in row)
    grid = f"display:grid;grid-template-columns:repeat({len(matrix[0])},22px);gap:1px"
    return f'<div style="{grid}">{cells}</div>'
