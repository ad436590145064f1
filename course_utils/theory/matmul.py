"""A small matrix product split over ranks, step by step, as data (no torch): by columns, and by rows."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CourseError

Matrix = tuple[tuple[int | None, ...], ...]  # None: this rank does not hold the number

X: Matrix = ((1, 2, 0, 1), (0, 1, 3, 2))
A: Matrix = ((1, 0, 2, 1), (3, 1, 0, 2), (0, 2, 1, 1), (1, 1, 3, 0))


@dataclass(frozen=True)
class Frame:
    """What each rank holds of x, of A and of y = x A."""

    held: tuple[tuple[Matrix, Matrix, Matrix], ...]
    text: str


def product(x: Matrix, a: Matrix) -> Matrix:
    """x A of what is held: terms with a missing factor are left out, a number without any term is missing."""

    def number(row: tuple, j: int) -> int | None:
        terms = [n * a[k][j] for k, n in enumerate(row) if n is not None and a[k][j] is not None]
        return sum(terms) if terms else None

    return tuple(tuple(number(row, j) for j in range(len(a[0]))) for row in x)


def steps(split: str, ranks: int = 2) -> list[Frame]:
    """The frames of a "column" or "row" split of `X` times `A` over 1, 2 or 4 ranks."""
    if split not in ("column", "row"):
        raise CourseError(f'steps({split!r}): the splits are "column" and "row".')
    if ranks not in (1, 2, 4):
        raise CourseError(f"steps(ranks={ranks!r}): the 4 columns and 4 rows are dealt to 1, 2 or 4 ranks.")
    own = [range(r * 4 // ranks, (r + 1) * 4 // ranks) for r in range(ranks)]
    nothing = _keep(product(X, A), columns=range(0))
    if split == "column":
        start = [(X, _keep(A, columns=mine), nothing) for mine in own]
        texts = ["Each rank has all of x, and its columns of A.",
                 "It computes its columns of the output. They are finished; nothing was sent.",
                 "Whoever needs all of them gathers: an all-gather. The next layer often does not."]
    else:
        start = [(_keep(X, columns=mine), _keep(A, rows=mine), nothing) for mine in own]
        texts = ["Each rank has its rows of A, and the columns of x that meet them.",
                 "It computes numbers for all of the output, but each is only a part of a sum.",
                 "An all-reduce adds them up: now every rank has the whole output."]
    computed = [(x, a, product(x, a)) for x, a, _ in start]
    whole = [(x, a, product(X, A)) for x, a, _ in start]
    return [Frame(tuple(held), text) for held, text in zip((start, computed, whole), texts, strict=True)]


def _keep(matrix: Matrix, *, rows: range | None = None, columns: range | None = None) -> Matrix:
    def kept(i: int, j: int) -> bool:
        return (rows is None or i in rows) and (columns is None or j in columns)

    return tuple(tuple(n if kept(i, j) else None for j, n in enumerate(row)) for i, row in enumerate(matrix))
