"""The capability card: what · here · native or virtual. The HTML and the plain text say the same facts."""

from __future__ import annotations

import math
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from .style import FONT, GREY, QUIET, ROLE, alt

if TYPE_CHECKING:
    from .devices import Machine

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


def rows(machine: Machine) -> list[Row]:
    """The facts of a machine, in the order they are read."""
    return [_cpu(machine), _memory(machine), *_accelerators(machine), _xla(machine), _ranks(machine)]


def text(machine: Machine) -> str:
    lines = [f"This machine: {_about(machine)}"]
    for row in rows(machine):
        detail = f" · {row.detail}" if row.detail else ""
        lines.append(f"  {row.what:<10}{MARKS[row.how][0]} {row.how:<11}{row.here}{detail}")
    return "\n".join(lines + [f"  note: {note}" for note in machine.notes])


def html(machine: Machine) -> str:
    body = "".join(_html_row(row) for row in rows(machine))
    notes = "".join(
        f'<div style="margin-top:6px;overflow-wrap:anywhere"><b>Note</b>&ensp;{escape(note)}</div>'
        for note in machine.notes
    )
    # Inline styles only: they survive where a notebook is not trusted, and touch nothing else on the page.
    return (
        f'<div style="font:13px/1.4 {FONT};color:inherit;max-width:680px;border:1px solid rgba(128,128,128,.4);'
        f'border-radius:8px;padding:10px 14px 8px;margin:4px 0;box-sizing:border-box">'
        f'<div style="margin-bottom:4px"><b style="font-size:15px">This machine</b>'
        f'<span style="opacity:{QUIET}">&ensp;{escape(_about(machine))}</span></div>'
        f'<table style="border-collapse:collapse;width:100%;table-layout:auto;margin:0;font-size:13px;color:inherit">'
        f"<tbody>{body}</tbody></table>{notes}</div>"
    )


def _about(machine: Machine) -> str:
    return f"{machine.place} · {machine.system} · Python {machine.python} · torch {machine.torch}"


def _cpu(machine: Machine) -> Row:
    usable, total = f"{machine.cores:g}", machine.cores_total
    here = _count(usable, "core") if machine.cores == total else f"{usable} of {total} cores"
    why = "" if machine.cores == total else ", limited for this process"
    return Row("CPU", here, machine.devices[0].title + why, "native", (total, math.ceil(machine.cores)))


def _memory(machine: Machine) -> Row:
    here = _bytes(machine.memory)
    # A kernel keeps a little to itself: only a limit well below the total is one somebody set.
    if machine.memory < 0.98 * machine.memory_total:
        here += f" of {_bytes(machine.memory_total)}"
    used = 1 - machine.memory_available / machine.memory
    return Row("memory", here, f"{_bytes(machine.memory_available)} free now", "native", filled=used)


def _accelerators(machine: Machine) -> list[Row]:
    found = []
    for (title, memory, capability), same in groupby(machine.accelerators, lambda d: (d.title, d.memory, d.capability)):
        group = list(same)
        names = group[0].name if len(group) == 1 else f"{group[0].name} … {group[-1].name}"
        current = next((device.name for device in group if device.current), None)
        facts = [names + (f", current {current}" if current and len(machine.accelerators) > 1 else "")]
        facts += [f"{_bytes(memory)}{' each' if len(group) > 1 else ''}"] if memory else []
        facts += [f"compute capability {capability[0]}.{capability[1]}"] if capability else []
        here = f"{len(group)} \N{MULTIPLICATION SIGN} {title}" if len(group) > 1 else title
        cells = (len(group), len(group)) if len(group) > 1 else (0, 0)
        found.append(Row("GPU" if group[0].kind != "tpu" else "TPU", here, " · ".join(facts), "native", cells))
    return found or [Row("GPU", "none that torch can use", "the meta device stands in as a second device", "not here")]


def _xla(machine: Machine) -> Row:
    if machine.tpu:
        return Row("TPU", machine.tpu, machine.xla or "neither torch_xla nor torch_tpu is installed in this kernel",
                   "native" if machine.xla else "not usable")  # fmt: skip
    if machine.xla and machine.xla.startswith("torch_xla"):
        return Row("TPU", "virtual cores of XLA's CPU client", machine.xla, "virtual")
    return Row("TPU", "none", machine.xla or "torch_xla is not installed in this kernel", "not here")


def _ranks(machine: Machine) -> Row:
    gpus = len(machine.accelerators)
    ranks = gpus if gpus > 1 else 4
    sentence = machine.runs(ranks)
    own = ranks <= max(gpus, machine.cores)
    kind = "real processes" + ("" if own else " that take turns on the cores")
    backends = f"backends: {', '.join(machine.backends)}" if machine.backends else "this torch has no torch.distributed"
    return Row("ranks", sentence, f"{kind} · {backends}", "native" if own else "virtual")


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


def _bytes(number: int) -> str:
    value = number / 2**30
    return f"{value:.3g} GiB" if value < 999.5 else f"{value:.0f} GiB"


def _count(number: str, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == "1" else "s")
