"""Collectives step by step, as data: what every rank holds, and what it sends to whom. No torch, no processes.

The message is cut into chunks; in one step every rank may send one chunk and receive one, all at the same time.
Ring algorithms as in Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fractions import Fraction

from ..errors import CourseError

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
