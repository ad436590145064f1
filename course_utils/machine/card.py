"""A card of rows: what · here · native or virtual. The HTML and the plain text say the same facts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ..style import FONT, GREY, QUIET, ROLE, alt

# A mark tells the three apart without colour.
MARKS = {"native": ("●", ROLE["optimizer"]), "virtual": ("◐", ROLE["backward"]), "not here": ("○", GREY)}
MARKS["not usable"] = MARKS["not here"]
MOST_CELLS = 32  # little squares that still fit beside the text at 600 px


class Row(NamedTuple):
    what: str
    here: str
    detail: str
    how: str  # a key of MARKS
    cells: tuple[int, int] = (0, 0)  # (of these, how many are ours), drawn as squares
    filled: float | None = None  # share of a bar


def text(about: str, rows: Sequence[Row], notes: Sequence[str]) -> str:
    lines = [f"This machine: {about}"]
    for row in rows:
        detail = f" · {row.detail}" if row.detail else ""
        lines.append(f"  {row.what:<10}{MARKS[row.how][0]} {row.how:<11}{row.here}{detail}")
    return "\n".join(lines + [f"  note: {note}" for note in notes])


def html(about: str, rows: Sequence[Row], notes: Sequence[str]) -> str:
    body = "".join(_html_row(row) for row in rows)
    below = "".join(
        f'<div style="margin-top:6px;overflow-wrap:anywhere"><b>Note</b>&ensp;{escape(note)}</div>'
        for note in notes
    )
    # Inline styles only: they survive where a notebook is not trusted, and touch nothing else on the page.
    return (
        f'<div style="font:13px/1.4 {FONT};color:inherit;max-width:680px;border:1px solid rgba(128,128,128,.4);'
        f'border-radius:8px;padding:10px 14px 8px;margin:4px 0;box-sizing:border-box">'
        f'<div style="margin-bottom:4px"><b style="font-size:15px">This machine</b>'
        f'<span style="opacity:{QUIET}">&ensp;{escape(about)}</span></div>'
        f'<table style="border-collapse:collapse;width:100%;table-layout:auto;margin:0;font-size:13px;color:inherit">'
        f"<tbody>{body}</tbody></table>{below}</div>"
    )


def _html_row(row: Row) -> str:
    mark, colour = MARKS[row.how]
    cell = "text-align:left;vertical-align:baseline;border:0;border-top:1px solid rgba(128,128,128,.22);padding:5px 0"
    picture = _squares(*row.cells) if row.cells[0] > 1 else _bar(row.filled) if row.filled is not None else ""
    detail = f'<br><span style="opacity:{QUIET};font-size:12px">{escape(row.detail)}</span>' if row.detail else ""
    return (
        f'<tr style="background:none"><td style="{cell};white-space:nowrap;padding-right:14px;opacity:{QUIET}">'
        f'{row.what}</td><td style="{cell};width:100%;overflow-wrap:anywhere;white-space:normal">'
        f'<b>{escape(row.here)}</b>{picture}{detail}</td><td style="{cell};white-space:nowrap;padding-left:14px">'
        f'<span style="color:{colour}">{mark}</span> {row.how}</td></tr>'
    )


def _squares(total: int, ours: int) -> str:
    if total > MOST_CELLS:
        return ""
    square = "display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:2px;box-sizing:border-box"
    full = f'<span style="{square};background:{ROLE["forward"]}"></span>'
    empty = f'<span style="{square};border:1px solid {GREY}"></span>'
    return f'<span {alt(f"{ours} of {total}")} style="margin-left:10px">{full * ours}{empty * (total - ours)}</span>'


def _bar(share: float) -> str:
    percent = round(100 * min(1.0, max(0.0, share)))
    return (
        f'<span {alt(f"{percent} % used")} style="display:inline-block;width:96px;height:8px;margin-left:10px;'
        f'border:1px solid {GREY};border-radius:3px;overflow:hidden"><span style="display:block;height:100%;'
        f'width:{percent}%;background:{ROLE["forward"]}"></span></span>'
    )
