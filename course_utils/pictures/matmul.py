"""A matrix product split over ranks, to click through: what each rank holds of x, of A and of y = x A."""

from .. import style
from .picture import Picture, player

Matrix = list[list[int | None]]  # None: this rank does not hold the number

X = [[1, 2, 0, 1], [0, 1, 3, 2]]
A = [[1, 0, 2, 1], [3, 1, 0, 2], [0, 2, 1, 1], [1, 1, 3, 0]]
TEXTS = {
    "column": [
        "Each rank has all of x, and its columns of A.",
        "It computes its columns of the output. They are finished; nothing was sent.",
        "Whoever needs all of them gathers: an all-gather. The next layer often does not.",
    ],
    "row": [
        "Each rank has its rows of A, and the columns of x that meet them.",
        "It computes numbers for all of the output, but each is only a part of a sum.",
        "An all-reduce adds them up: now every rank has the whole output.",
    ],
}


def matmul(split: str, ranks: int = 2) -> Picture:
    """The steps of a "column" or "row" split over 1, 2 or 4 ranks; needs no kernel once it is there."""
    columns, frames = split == "column", ["", "", ""]
    for rank in range(ranks):
        mine = [k * ranks // 4 == rank for k in range(4)]
        x = [[n if columns or mine[k] else None for k, n in enumerate(row)] for row in X]
        a = [
            [n if mine[j if columns else k] else None for j, n in enumerate(row)]
            for k, row in enumerate(A)
        ]
        ys = [[None] * 4] * 2, product(x, a), product(X, A)
        frames = [frame + _row(rank, x, a, y) for frame, y in zip(frames, ys, strict=True)]
    alt = f"x times A on {ranks} ranks. " + " ".join(
        f"{i}: {text}" for i, text in enumerate(TEXTS[split])
    )
    return player(
        frames, title=f"A {split} split over {ranks} ranks", alt=alt, captions=TEXTS[split]
    )


def product(x: Matrix, a: Matrix) -> Matrix:
    """x A from what is there of them; None where nothing of a column of A is."""
    terms = [
        [[n * a[k][j] for k, n in enumerate(row) if None not in (n, a[k][j])] for j in range(4)]
        for row in x
    ]
    return [[sum(numbers) if numbers else None for numbers in row] for row in terms]


def _row(rank: int, *held: Matrix) -> str:
    """One rank: x, A and y; what it holds in its colour, dots for the rest."""
    size = "width:22px;height:20px;line-height:20px;box-sizing:border-box;text-align:center"
    full = f"background:{style.RANK[rank]};color:{style.ink(style.RANK[rank])}"
    tables = []
    for matrix in held:
        cells = [
            f'<div style="{size};border:1px dotted {style.GREY}"></div>'
            if n is None
            else f'<div style="{size};{full}">{n}</div>'
            for row in matrix
            for n in row
        ]
        tables.append(
            '<div style="display:grid;grid-template-columns:repeat(4,22px);gap:1px">'
            + "".join(cells)
        )
    return (
        f'<div style="display:flex;align-items:center;gap:10px;padding:4px 0;font:{style.TEXT}px {style.FONT}">'
        f'<div style="font-weight:600;width:48px">rank {rank}</div>{tables[0]}</div><div>·</div>{tables[1]}</div>'
        f"<div>=</div>{tables[2]}</div></div>"
    )
