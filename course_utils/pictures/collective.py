"""Collectives step by step, to click through: what every rank holds, and what it sends to whom."""

from __future__ import annotations

from .. import style
from ..theory.collectives import Frame, Send, sent, steps
from .picture import Picture
from .player import player


def collective(name: str, ranks: int = 4) -> Picture:
    """The steps of a collective to click or play through; needs no kernel once it is there."""
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
        f'<path d="M0 {_TOP + _ROW * r + 13}h9v9h-9z" fill="{style.RANK[r]}"/>'
        f'<text x="14" y="{_TOP + _ROW * r + 22}" font-weight="600">rank {r}</text>'
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
