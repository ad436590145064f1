"""Collectives step by step, as data: what every rank holds, and what it sends to whom. No torch, no processes.

The message is cut into chunks; in one step every rank may send one chunk and receive one, all at the same time.
Ring algorithms as in Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from . import style
from .errors import CourseError

if TYPE_CHECKING:
    from .pictures import Picture

Held = tuple[tuple[frozenset[int], ...], ...]

MOST_RANKS = 8  # what a picture can still show


@dataclass(frozen=True)
class Send:
    """One chunk on its way from rank `src` to rank `dst`."""

    src: int
    dst: int
    chunk: int


@dataclass(frozen=True)
class Frame:
    """The state after one step: `held[rank][chunk]` is the set of ranks whose data is in it (empty: not there)."""

    held: Held
    sends: tuple[Send, ...]
    text: str


def steps(name: str, ranks: int) -> list[Frame]:
    """The start and every step of "broadcast", "all-gather", "reduce-scatter" or "all-reduce" on 2 to 8 ranks.

    "broadcast" is a tree from rank 0 and moves the whole message as one chunk; the others are rings of `ranks` chunks.
    In "reduce-scatter" and "all-reduce" a partial sum leaves its sender, which has no more use for it.
    """
    if name not in _MAKE:
        near = difflib.get_close_matches(str(name), _MAKE, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise CourseError(f"collectives: there is no {name!r}.{hint} It can be {', '.join(map(repr, _MAKE))}.")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 2 <= ranks <= MOST_RANKS:
        raise CourseError(f"collectives.steps({name!r}, {ranks!r}): ranks is a whole number from 2 to {MOST_RANKS}.")
    return _MAKE[name](ranks)


def sent(frames: list[Frame], rank: int) -> Fraction:
    """What `rank` sends in all these steps, as a share of the message: 2(p - 1)/p for a ring all-reduce on p ranks."""
    count = sum(send.src == rank for frame in frames for send in frame.sends)
    return Fraction(count, len(frames[0].held[0]))


def _broadcast(p: int) -> list[Frame]:
    held = tuple((frozenset({0} if r == 0 else ()),) for r in range(p))
    frames = [Frame(held, (), "Only rank 0 has the message.")]
    have = 1
    while have < p:
        sends = tuple(Send(r, r + have, 0) for r in range(have) if r + have < p)
        held = _after(held, sends)
        have = min(2 * have, p)
        text = "Every rank has it." if have == p else f"Whoever has it sends it on: {have} ranks have it now."
        frames.append(Frame(held, sends, text))
    return frames


def _all_gather(p: int) -> list[Frame]:
    held = tuple(tuple(frozenset({r} if c == r else ()) for c in range(p)) for r in range(p))
    return [Frame(held, (), "Every rank has one chunk."), *_gathering(held, p)]


def _gathering(held: Held, p: int) -> list[Frame]:
    frames = []
    for s in range(p - 1):
        sends = tuple(Send(r, (r + 1) % p, (r - s) % p) for r in range(p))
        held = _after(held, sends)
        text = "Every rank passes on the chunk it got last." if s else "Every rank sends its own chunk to the next."
        frames.append(Frame(held, sends, text if s < p - 2 else f"{text} All have everything."))
    return frames


def _reduce_scatter(p: int) -> list[Frame]:
    held: Held = tuple(tuple(frozenset({r}) for _ in range(p)) for r in range(p))
    frames = [Frame(held, (), "Every rank has numbers of its own, cut into chunks.")]
    for s in range(p - 1):
        sends = tuple(Send(r, (r + 1) % p, (r - s - 1) % p) for r in range(p))
        held = _after(held, sends, add=True)
        text = (
            "Every rank passes on the sum it just made." if s else "Every rank sends one chunk; the next one adds it."
        )
        frames.append(Frame(held, sends, text if s < p - 2 else f"{text} Rank r holds the sum of chunk r."))
    return frames


def _all_reduce(p: int) -> list[Frame]:
    first = _reduce_scatter(p)
    second = _gathering(first[-1].held, p)
    return [
        *(Frame(f.held, f.sends, f"{'Reduce-scatter. ' if f.sends else ''}{f.text}") for f in first),
        *(Frame(f.held, f.sends, f"All-gather. {f.text.replace('its own chunk', 'its sum')}") for f in second),
    ]


_MAKE = {
    "broadcast": _broadcast,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-reduce": _all_reduce,
}


def _after(held: Held, sends: tuple[Send, ...], *, add: bool = False) -> Held:
    """The state after all sends at once: copied over what was there, or moved and added to it."""
    new = [list(row) for row in held]
    for send in sends if add else ():
        new[send.src][send.chunk] = frozenset()
    for send in sends:
        arriving = held[send.src][send.chunk]
        new[send.dst][send.chunk] = held[send.dst][send.chunk] | arriving if add else arriving
    return tuple(tuple(row) for row in new)


def show(name: str, ranks: int = 4) -> Picture:
    """The steps as a picture to click or play through; needs no kernel once it is there."""
    from .pictures import player

    frames = steps(name, ranks)
    alt = (
        f"{len(frames) - 1} steps; one row a rank, one column a chunk. Rank 0 sends {float(sent(frames, 0)):.3g} times "
        "the message. " + " ".join(f"{i}: {frame.text}" for i, frame in enumerate(frames))
    )
    drawn = [_draw(frame, sums="reduce" in name) for frame in frames]
    return player(drawn, title=f"{name} on {ranks} ranks", alt=alt, captions=[frame.text for frame in frames])


_ROW, _LEFT, _TOP, _RIGHT, _HIGH = 46, 64, 24, 34, 34  # px


def _draw(frame: Frame, *, sums: bool) -> str:
    """One frame as SVG: one row a rank, one column a chunk; thick boxes just arrived, arrows show from where."""
    p, chunks = len(frame.held), len(frame.held[0])
    wide = min(150, ((540 if chunks <= 5 else 640) - _LEFT - _RIGHT) // chunks)
    box, part = wide - 20, (wide - 28) // p
    arrived = {(send.dst, send.chunk) for send in frame.sends}
    boxes = {"thin": "", "thick": "", "empty": ""}
    bars, texts = [""] * p, ""
    for c in range(chunks):
        head = "message" if chunks == 1 else f"chunk {c}"
        texts += f'<text x="{_LEFT + wide * c + 3 + box // 2}" y="14" opacity="{style.QUIET}">{head}</text>'
    for r, row in enumerate(frame.held):
        for c, ranks in enumerate(row):
            x, y = _LEFT + wide * c + 3, _TOP + _ROW * r
            kind = "thick" if (r, c) in arrived else "thin" if ranks else "empty"
            boxes[kind] += f"M{x} {y}h{box}v{_HIGH}h-{box}z"
            for i in ranks:
                bars[i] += f"M{x + 4 + i * part} {y + 25}h{part - 1}v5h-{part - 1}z"
            if ranks:
                texts += f'<text x="{x + box // 2}" y="{y + 17}">{_contents(ranks, p, sums)}</text>'
    rows = "".join(
        f'<text x="4" y="{_TOP + _ROW * r + 22}" fill="{style.RANK[r]}" font-weight="600">rank {r}</text>'
        for r in range(p)
    )
    looks = {"thin": f'stroke-opacity="{style.AXIS}"', "thick": 'stroke-width="2.5"', "empty": 'stroke-dasharray="1 4"'}
    height = _TOP + _ROW * p
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + wide * chunks + _RIGHT} {height}" '
        f'width="{_LEFT + wide * chunks + _RIGHT}" style="max-width:100%;height:auto;color:inherit" '
        f'font-family="{style.FONT}" font-size="{style.TEXT}" fill="currentColor" aria-hidden="true">{rows}'
        + "".join(f'<path d="{d}" fill="none" stroke="currentColor" {looks[kind]}/>' for kind, d in boxes.items() if d)
        + "".join(f'<path d="{d}" fill="{style.RANK[i]}"/>' for i, d in enumerate(bars) if d)
        + f'<g text-anchor="middle">{texts}</g>'
        + "".join(_arrow(send, _LEFT + wide * (send.chunk + 1) - 15) for send in frame.sends)
        + "</svg>"
    )


def _contents(ranks: frozenset[int], p: int, sums: bool) -> str:
    """Whose data a chunk holds, in a few letters."""
    if sums and len(ranks) == p:
        return "sum"
    few = "+".join(map(str, sorted(ranks))) if len(ranks) <= (3 if p <= 6 else 2) else f"{len(ranks)} of {p}"
    return few if sums else f"from {few}"


def _arrow(send: Send, x: int) -> str:
    """From the sender's row to the receiver's, in the gap to the right of the chunk; bent further out the longer."""
    start, end = (_TOP + _ROW * r + _HIGH // 2 for r in (send.src, send.dst))
    bend = x + 6 + min(9, 2 * abs(send.dst - send.src))
    colour = style.RANK[send.src]
    return (
        f'<path d="M{x} {start}C{bend} {start} {bend} {end} {x + 3} {end}" fill="none" stroke="{colour}" '
        f'stroke-width="2"/><path d="M{x - 2} {end}l7 -4v8z" fill="{colour}"/>'
    )
