"""Collectives step by step, to click through: what every rank holds, and what it sends to whom.

The message is cut into chunks; in one step every rank may send one chunk and receive one, all at
the same time. Ring algorithms as in Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
for clusters of workstations" (2009).
"""

from collections import defaultdict
from typing import NamedTuple

from .. import style
from ..errors import CourseError
from .picture import Picture, player

# held[rank][chunk]: the ranks whose data is in the chunk that this rank has; empty if it has none.
Held = list[list[set[int]]]


class Send(NamedTuple):
    """One chunk on its way from rank `src` to rank `dst`."""

    src: int
    dst: int
    chunk: int


class Step(NamedTuple):
    """What was sent in a step, in words, too, and what the ranks hold after it."""

    held: Held
    sends: list[Send]
    text: str


# What every rank does in the first step of a ring, what in the others; and what then is so.
GATHER = (
    "sends the next one the chunk that it has.",
    "passes on the chunk it got last.",
    " All have everything.",
)
REDUCE = (
    "sends one chunk; the next one adds it.",
    "passes on the sum it just made.",
    " Rank r holds the sum of chunk r.",
)
NAMES = "broadcast", "all-gather", "reduce-scatter", "all-reduce"


def collective(name: str, ranks: int = 4) -> Picture:
    """The steps of "broadcast", "all-gather", "reduce-scatter" or "all-reduce" on 2 to 8 ranks, to
    click through.
    """
    if name not in NAMES or not 2 <= ranks <= len(style.RANK):
        raise CourseError(
            f"There is no picture of {name!r} on {ranks!r} ranks, but of {', '.join(NAMES)} on 2 "
            "to 8."
        )
    found = steps(name, ranks)
    said = " ".join(f"{i}: {step.text}" for i, step in enumerate(found))
    return player(
        [_draw(step, sums="reduce" in name) for step in found],
        title=f"{name} on {ranks} ranks",
        alt=f"{len(found) - 1} steps; one row a rank, one column a chunk. {said}",
        captions=[step.text for step in found],
    )


def steps(name: str, p: int) -> list[Step]:
    """The start and every step. A broadcast is a tree from rank 0 and moves the whole message as
    one chunk; the others are rings of p chunks. Where chunks are added up, a partial sum leaves its
    sender, which has no more use for it.
    """
    if name == "broadcast":
        return _tree(p)

    if name == "all-gather":
        own: Held = [[{r} if c == r else set() for c in range(p)] for r in range(p)]
        return [Step(own, [], "Every rank has one chunk."), *_ring(own, add=False)]

    own = [[{r}] * p for r in range(p)]
    start = Step(own, [], "Every rank has numbers of its own, cut into chunks.")
    if name == "reduce-scatter":
        return [start, *_ring(own, add=True)]

    first = _ring(own, "Reduce-scatter. ", add=True)
    return [start, *first, *_ring(first[-1].held, "All-gather. ", add=False)]


def _tree(p: int) -> list[Step]:
    """A broadcast: in each step, whoever has the message sends it to one who has not."""

    def first(have: int) -> Held:
        return [[{0} if r < have else set()] for r in range(p)]

    found = [Step(first(1), [], "Only rank 0 has the message.")]
    have = 1
    while have < p:
        sends = [Send(r, r + have, 0) for r in range(min(have, p - have))]
        have *= 2
        text = "Every rank has it."
        if have < p:
            text = f"Whoever has it sends it on: {have} ranks have it now."
        found.append(Step(first(have), sends, text))
    return found


def _ring(held: Held, part: str = "", *, add: bool) -> list[Step]:
    """The steps in which every chunk goes once around. `add`: whoever gets one adds its own to it,
    and the sender keeps nothing.
    """
    p = len(held)
    first, later, end = REDUCE if add else GATHER
    found = []
    for s in range(p - 1):
        ahead = s + 1 if add else s
        sends = [Send(r, (r + 1) % p, (r - ahead) % p) for r in range(p)]
        before, held = held, [[*row] for row in held]
        for src, dst, chunk in sends:
            held[dst][chunk] = before[dst][chunk] | before[src][chunk]
            if add:
                held[src][chunk] = set()

        text = f"{part}Every rank {later if s else first}"
        if s == p - 2:
            text += end
        found.append(Step(held, sends, text))
    return found


ROW, LEFT, TOP, RIGHT, HIGH = 46, 64, 24, 34, 34  # px
THIN = f'stroke-opacity="{style.AXIS}"'
THICK = 'stroke-width="2.5"'
DOTTED = 'stroke-dasharray="1 4"'
WHOLE = "max-width:100%;height:auto;color:inherit"


def _draw(step: Step, *, sums: bool) -> str:
    """One step as SVG: one row a rank, one column a chunk; thick boxes just arrived, arrows show
    from where.
    """
    p, chunks = len(step.held), len(step.held[0])
    page = 540 if chunks <= 5 else 640
    wide = min(150, (page - LEFT - RIGHT) // chunks)  # px of a column
    box, part = wide - 20, (wide - 28) // p  # px of its box, and of a rank's mark in it
    arrived = {(send.dst, send.chunk) for send in step.sends}

    # One path for all that looks alike: a page of separate ones would be five times as large.
    paths: dict[str, str] = defaultdict(str)
    names = []
    texts = []
    for c in range(chunks):
        head = f"chunk {c}" if chunks > 1 else "message"
        x = LEFT + wide * c + 3 + box // 2
        texts.append(f'<text x="{x}" y="14" opacity="{style.QUIET}">{head}</text>')

    for r, row in enumerate(step.held):
        y = TOP + ROW * r
        paths[f'fill="{style.RANK[r]}"'] += f"M0 {y + 13}h9v9h-9z"
        names.append(f'<text x="14" y="{y + 22}" font-weight="600">rank {r}</text>')
        for c, ranks in enumerate(row):
            x = LEFT + wide * c + 3
            edge = THIN if ranks else DOTTED
            if (r, c) in arrived:
                edge = THICK
            paths[f'fill="none" stroke="currentColor" {edge}'] += f"M{x} {y}h{box}v{HIGH}h-{box}z"
            for i in ranks:
                mark = f"M{x + 4 + i * part} {y + 25}h{part - 1}v5h-{part - 1}z"
                paths[f'fill="{style.RANK[i]}"'] += mark
            if ranks:
                text = _content(ranks, p, sums=sums)
                texts.append(f'<text x="{x + box // 2}" y="{y + 17}">{text}</text>')

    drawn = "".join(names) + "".join(f'<path d="{d}" {look}/>' for look, d in paths.items())
    arrows = "".join(_arrow(send, wide) for send in step.sends)
    width, height = LEFT + wide * chunks + RIGHT, TOP + ROW * p
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'style="{WHOLE}" font-family="{style.FONT}" font-size="{style.TEXT}" '
        f'fill="currentColor" aria-hidden="true">{drawn}'
        f'<g text-anchor="middle">{"".join(texts)}</g>{arrows}</svg>'
    )


def _content(ranks: set[int], p: int, *, sums: bool) -> str:
    """What a box says: whose data is in the chunk, of `p` ranks."""
    if sums and len(ranks) == p:
        return "sum"
    fit = 3 if p <= 6 else 2
    names = "+".join(map(str, sorted(ranks))) if len(ranks) <= fit else f"{len(ranks)} of {p}"
    return names if sums else f"from {names}"


def _arrow(send: Send, wide: int) -> str:
    """In the gap to the right of the chunk, bent further out the longer."""
    x = LEFT + wide * (send.chunk + 1) - 15
    start, end = (TOP + ROW * r + HIGH // 2 for r in (send.src, send.dst))
    bend = x + 6 + min(9, 2 * abs(send.dst - send.src))
    color = style.RANK[send.src]
    return (
        f'<path d="M{x} {start}C{bend} {start} {bend} {end} {x + 3} {end}" fill="none" '
        f'stroke="{color}" stroke-width="2"/><path d="M{x - 2} {end}l7 -4v8z" fill="{color}"/>'
    )
