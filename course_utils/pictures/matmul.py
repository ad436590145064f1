"""A matrix product split over ranks, to click through: what each rank holds of x, of A and of y = x A."""

from .. import style
from .picture import Picture, player

Matrix = tuple[tuple[int | None, ...], ...]  # None: this rank does not hold the number

X: Matrix = ((1, 2, 0, 1), (0, 1, 3, 2))
A: Matrix = ((1, 0, 2, 1), (3, 1, 0, 2), (0, 2, 1, 1), (1, 1, 3, 0))
ALL = range(4)  # the rows and columns of A
TEXTS = {
    "column": ["Each rank has all of x, and its columns of A.",
               "It computes its columns of the output. They are finished; nothing was sent.",
               "Whoever needs all of them gathers: an all-gather. The next layer often does not."],
    "row": ["Each rank has its rows of A, and the columns of x that meet them.",
            "It computes numbers for all of the output, but each is only a part of a sum.",
            "An all-reduce adds them up: now every rank has the whole output."],
}


def matmul(split: str, ranks: int = 2) -> Picture:
    """The steps of a "column" or "row" split over 1, 2 or 4 ranks; needs no kernel once it is there."""
    texts = TEXTS[split]
    alt = f"x times A on {ranks} ranks. " + " ".join(f"{i}: {text}" for i, text in enumerate(texts))
    drawn = ["".join(map(_row, range(ranks), held)) for held in steps(split, ranks)]
    return player(drawn, title=f"A {split} split over {ranks} ranks", alt=alt, captions=texts)


def steps(split: str, ranks: int) -> list[list[tuple[Matrix, Matrix, Matrix]]]:
    """What each rank holds of x, A and y: at the start, once it has computed, and once they have talked."""
    whole, held = product(ALL), []
    for r in range(ranks):
        mine = range(r * 4 // ranks, (r + 1) * 4 // ranks)
        held.append((X, _keep(A, ALL, mine), _keep(whole, ALL, mine)) if split == "column" else
                    (_keep(X, ALL, mine), _keep(A, mine, ALL), product(mine)))
    return [[(x, a, _keep(y, ALL, range(0))) for x, a, y in held], held, [(x, a, whole) for x, a, _ in held]]


def product(terms: range) -> Matrix:
    """x A, summed over these columns of x and rows of A."""
    return tuple(tuple(sum(row[k] * A[k][j] for k in terms) for j in ALL) for row in X)


def _keep(matrix: Matrix, rows: range, columns: range) -> Matrix:
    return tuple(tuple(n if i in rows and j in columns else None for j, n in enumerate(row))
                 for i, row in enumerate(matrix))


def _row(rank: int, held: tuple[Matrix, Matrix, Matrix]) -> str:
    """One rank: x, A and y; what it holds in its colour, dots for the rest."""
    size = "width:22px;height:20px;line-height:20px;box-sizing:border-box;text-align:center"
    full = f"background:{style.RANK[rank]};color:{style.ink(style.RANK[rank])}"
    tables = []
    for matrix in held:
        cells = [f'<div style="{size};border:1px dotted {style.GREY}"></div>' if n is None else
                 f'<div style="{size};{full}">{n}</div>' for row in matrix for n in row]
        tables.append('<div style="display:grid;grid-template-columns:repeat(4,22px);gap:1px">' + "".join(cells))
    return (f'<div style="display:flex;align-items:center;gap:10px;padding:4px 0;font:{style.TEXT}px {style.FONT}">'
            f'<div style="font-weight:600;width:48px">rank {rank}</div>{tables[0]}</div><div>·</div>{tables[1]}</div>'
            f"<div>=</div>{tables[2]}</div></div>")
