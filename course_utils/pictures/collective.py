"""Collectives step by step, to click through: what every rank holds, and what it sends to whom.

The message is cut into chunks; in one step every rank may send one chunk and receive one, all at the same time.
Ring algorithms as in Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
"""

from collections import defaultdict, namedtuple

from .. import style
from ..errors import CourseError
from .picture import Picture, player

# One chunk on its way from rank `src` to rank `dst`.
Send = namedtuple("Send", "src dst chunk")
# The state after a step: `held[rank][chunk]` is the set of ranks whose data is in it (empty: not there).
Step = namedtuple("Step", "held sends text")

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
    """The steps of "broadcast", "all-gather", "reduce-scatter" or "all-reduce" on 2 to 8 ranks, to click through."""
    if name not in NAMES or not 2 <= ranks <= len(style.RANK):
        raise CourseError(
            f"There is no picture of {name!r} on {ranks!r} ranks, but of {', '.join(NAMES)} on 2 to 8."
        )
    found = steps(name, ranks)
    said = " ".join(f"{i}: {step.text}" for i, step in enumerate(found))
    alt = f"{len(found) - 1} steps; one row a rank, one column a chunk. {said}"
    drawn = [_draw(step, sums="reduce" in name) for step in found]
    return player(
        drawn, title=f"{name} on {ranks} ranks", alt=alt, captions=[step.text for step in found]
    )


def steps(name: str, p: int) -> list[Step]:
    """The start and every step. A broadcast is a tree from rank 0 and moves the whole message as one chunk; the others
    are rings of p chunks. Where chunks are added up, a partial sum leaves its sender, which has no more use for it.
    """
    if name == "broadcast":
        found, have = (
            [
                Step(
                    [[{0} if r < 1 else set()] for r in range(p)],
                    [],
                    "Only rank 0 has the message.",
                )
            ],
            1,
        )
        while have < p:
            sends = [Send(r, r + have, 0) for r in range(min(have, p - have))]
            have *= 2
            text = (
                f"Whoever has it sends it on: {have} ranks have it now."
                if have < p
                else "Every rank has it."
            )
            found.append(Step([[{0} if r < have else set()] for r in range(p)], sends, text))
        return found
    own = [[{r} if c == r or name != "all-gather" else set() for c in range(p)] for r in range(p)]
    if name == "all-gather":
        return [Step(own, [], "Every rank has one chunk."), *_ring(own, GATHER)]
    start = Step(own, [], "Every rank has numbers of its own, cut into chunks.")
    if name == "reduce-scatter":
        return [start, *_ring(own, REDUCE)]
    first = _ring(own, REDUCE, "Reduce-scatter. ")
    return [start, *first, *_ring(first[-1].held, GATHER, "All-gather. ")]


def _ring(held: list[list[set[int]]], texts: tuple[str, str, str], part: str = "") -> list[Step]:
    """The steps in which a chunk goes once around; texts: of the first step, of the others, and behind the last."""
    p, found, add = len(held), [], texts is REDUCE
    for s in range(p - 1):
        sends = [Send(r, (r + 1) % p, (r - s - add) % p) for r in range(p)]
        before, held = held, [[*row] for row in held]
        for src, dst, chunk in sends:
            held[dst][chunk] = (
                before[src][chunk] | before[dst][chunk] if add else before[src][chunk]
            )
            held[src][chunk] = set() if add else held[src][chunk]
        found.append(Step(held, sends, f"{part}Every rank {texts[s > 0]}{texts[2] * (s == p - 2)}"))
    return found


ROW, LEFT, TOP, RIGHT, HIGH = 46, 64, 24, 34, 34  # px


def _draw(step: Step, *, sums: bool) -> str:
    """One step as SVG: one row a rank, one column a chunk; thick boxes just arrived, arrows show from where."""
    p, chunks = len(step.held), len(step.held[0])
    wide = min(150, ((540 if chunks <= 5 else 640) - LEFT - RIGHT) // chunks)
    box, part = wide - 20, (wide - 28) // p
    arrived = {(send.dst, send.chunk) for send in step.sends}
    thin, thick, empty = (
        f'stroke-opacity="{style.AXIS}"',
        'stroke-width="2.5"',
        'stroke-dasharray="1 4"',
    )
    paths = defaultdict(
        str
    )  # one for all that looks alike: a page of separate ones would be five times as large
    heads = [f"chunk {c}" for c in range(chunks)] if chunks > 1 else ["message"]
    texts = [
        f'<text x="{LEFT + wide * c + 3 + box // 2}" y="14" opacity="{style.QUIET}">{head}</text>'
        for c, head in enumerate(heads)
    ]
    drawn = ""
    for r, row in enumerate(step.held):
        y = TOP + ROW * r
        paths[f'fill="{style.RANK[r]}"'] += f"M0 {y + 13}h9v9h-9z"
        drawn += f'<text x="14" y="{y + 22}" font-weight="600">rank {r}</text>'
        for c, ranks in enumerate(row):
            x = LEFT + wide * c + 3
            look = thick if (r, c) in arrived else thin if ranks else empty
            paths[f'fill="none" stroke="currentColor" {look}'] += f"M{x} {y}h{box}v{HIGH}h-{box}z"
            for i in ranks:
                paths[f'fill="{style.RANK[i]}"'] += (
                    f"M{x + 4 + i * part} {y + 25}h{part - 1}v5h-{part - 1}z"
                )
            if ranks:
                few = (
                    f"{len(ranks)} of {p}"
                    if len(ranks) > (3 if p <= 6 else 2)
                    else "+".join(map(str, sorted(ranks)))
                )
                text = "sum" if sums and len(ranks) == p else few if sums else f"from {few}"
                texts.append(f'<text x="{x + box // 2}" y="{y + 17}">{text}</text>')
    drawn += "".join(f'<path d="{d}" {look}/>' for look, d in paths.items())
    arrows = ""
    for (
        src,
        dst,
        chunk,
    ) in step.sends:  # in the gap to the right of the chunk, bent further out the longer
        x, start, end = (
            LEFT + wide * (chunk + 1) - 15,
            *(TOP + ROW * r + HIGH // 2 for r in (src, dst)),
        )
        bend, color = x + 6 + min(9, 2 * abs(dst - src)), style.RANK[src]
        arrows += (
            f'<path d="M{x} {start}C{bend} {start} {bend} {end} {x + 3} {end}" fill="none" stroke="{color}" '
            f'stroke-width="2"/><path d="M{x - 2} {end}l7 -4v8z" fill="{color}"/>'
        )
    width, height = LEFT + wide * chunks + RIGHT, TOP + ROW * p
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'style="max-width:100%;height:auto;color:inherit" font-family="{style.FONT}" font-size="{style.TEXT}" '
        f'fill="currentColor" aria-hidden="true">{drawn}<g text-anchor="middle">{"".join(texts)}</g>{arrows}</svg>'
    )
