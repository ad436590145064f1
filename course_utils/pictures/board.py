"""Your own board: what you measured in all notebooks of this machine, as a table in a cell or as a page to keep."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Sequence
from pathlib import Path

from .. import style
from ..errors import CourseError
from ..style import duration, number, size
from . import kept
from .picture import Picture

WIDE, HIGH = 120, 30  # of a small curve, px

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>:root {{color-scheme: light dark}}
body {{font: 15px/1.5 {font}; max-width: 860px; margin: 2rem auto; padding: 0 1rem}}</style></head>
<body><main><h1>{title}</h1>{table}</main></body></html>
"""


class Board(Picture):
    """A table of runs; the last line of a cell shows it."""

    def save(self, path: str | Path) -> Path:
        """Write it as one page of HTML that needs nothing else, light or dark as the reader's browser is; its path."""
        try:
            page = PAGE.format(title="What I measured", font=style.FONT, table=self.html)
            Path(path).write_text(page, encoding="utf-8")
        except OSError as error:
            said = f"my_board().save({str(path)!r}): {error.strerror}. Give a file in a folder of yours."
            raise CourseError(said) from None
        return Path(path)


def my_board() -> Board:
    """What you measured in the notebooks of this course: runs of `launch`, live plots, each with its last values.

    Of runs of the same function on as many ranks and the same kind of device the last one is kept, in a file on this
    machine that nobody else is told of. `COURSE_BOARD=0` in the environment switches the file off, `COURSE_BOARD=path`
    moves it.

    Example:
        my_board().save("board.html")
    """
    runs = kept.kept()
    books = sorted({record["notebook"] for record in runs})
    names = ("run", "on", "took, with its start", "measured", "day")
    head = "".join(f'<th style="{_CELL}" scope="col">{name}</th>' for name in names)
    rows = []
    for book in books:
        rows.append(f'<tr><th colspan="5" scope="rowgroup" style="{_CELL};padding-top:14px">'
                    f"{html.escape(book or 'a notebook whose name is not known')}</th></tr>")
        rows += [_row(record) for record in runs if record["notebook"] == book]
    table = (f'<table style="border-collapse:collapse;font:{style.TEXT}px {style.FONT};color:inherit">'
             f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>") if runs else ""
    lines = [_text(record) for record in runs]
    foot = _foot(len(runs))
    return Board(f"{table}<p>{html.escape(foot)}</p>", "\n".join([*lines, foot]))


_CELL = "text-align:left;vertical-align:top;padding:4px 12px 4px 0;border-bottom:1px solid rgba(128,128,128,.35)"


def _foot(count: int) -> str:
    file, problem = kept.place(), kept.problem()
    told = f"{count or 'no'} run{'s' * (count != 1)}"
    if file is None:
        return f"{told.capitalize()}, of this session only: COURSE_BOARD=0 switches the file off."
    where = str(file).replace(str(Path.home()), "~", 1)
    if problem:
        return f"{told.capitalize()}. The last could not be kept in {where}: {problem}."
    return f"{told.capitalize()}, kept in {where} and nowhere else."


def _row(record: dict) -> str:
    title = f"<div>{html.escape(str(record.get('title') or ''))}</div>"
    measured = "".join(
        f'<div style="display:inline-block;margin:0 14px 2px 0"><div>{html.escape(name)} '
        f"<b>{number(ys[-1])}</b></div>{_small_curve(name, xs, ys)}</div>"
        for name, (xs, ys) in record["curves"].items() if ys
    )
    more = "".join(f"<div>{html.escape(note)}</div>" for note in _notes(record))
    cells = (f"<code>{html.escape(record['name'])}</code>{title}", html.escape(_on(record)), _took(record),
             measured + more, time.strftime("%Y-%m-%d", time.localtime(record["at"])))
    whole = ";white-space:nowrap"
    looks = zip(cells, ("", whole, whole, "", whole), strict=True)
    return "<tr>" + "".join(f'<td style="{_CELL}{look}">{cell}</td>' for cell, look in looks) + "</tr>"


def _text(record: dict) -> str:
    values = [f"{name} {number(ys[-1])}" for name, (_, ys) in record["curves"].items() if ys]
    about = record["notebook"], record["name"], record.get("title"), _on(record), _took(record)
    parts = [*about, *values, *_notes(record)]
    return " · ".join(str(part) for part in parts if part)


def _on(record: dict) -> str:
    ranks, unit = record.get("ranks"), record.get("unit", "rank")
    count = f"{ranks} {unit}{'s' * (ranks != 1)}" if ranks else ""
    return ", ".join(filter(None, [count, str(record.get("device") or "")]))


def _took(record: dict) -> str:
    return duration(record["seconds"]) if record.get("seconds") else ""


def _notes(record: dict) -> list[str]:
    sent = record.get("sent")
    return list(filter(None, [str(record.get("timeline") or ""), f"rank 0 sent {size(sent)}" if sent else ""]))


def _small_curve(name: str, xs: Sequence[float], ys: Sequence[float]) -> str:
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if len(points) < 2:
        return ""
    left, *_, right = sorted(x for x, _ in points)
    low, *_, high = sorted(y for _, y in points)
    across, up = (right - left) or 1, (high - low) or 1
    path, before = "", math.inf
    for x, y in points:  # where the steps begin anew, so does the line
        pen, before = "L" if x > before else "M", x
        path += f"{pen}{(x - left) / across * WIDE:.1f} {(high - y) / up * (HIGH - 4) + 2:.1f}"
    says = style.alt(f"{name} from {number(points[0][1])} to {number(points[-1][1])}, between {number(low)} and "
                     f"{number(high)}")
    return (f'<svg width="{WIDE}" height="{HIGH}" viewBox="0 0 {WIDE} {HIGH}" {says}><path d="{path}" '
            f'fill="none" stroke="{style.RANK[0]}" stroke-width="1.6"/></svg>')
