"""The pipeline explorer: sliders and a schedule drawn from them, in the page itself, with no kernel and no network."""

from __future__ import annotations

import html
import json

from .. import style
from ..theory.schedules import SCHEDULES, Schedule, bubble, idle, make
from .picture import Picture
from .pipeline_chart import SHADES
from .scripts import script

# One control a row: [name in the state, words, least, most, step]; what it does not know it does not touch.
CONTROLS = (
    ("p", "ranks (p)", 1, 8, 1),
    ("m", "micro-batches (m)", 1, 16, 1),
    ("v", "chunks a rank (v)", 1, 4, 1),
    ("ratio", "backward : forward", 0.5, 3, 0.5),
    ("link", "link time", 0, 1, 0.1),
)


def explorer(name: str = "GPipe", *, ranks: int = 2, micro_batches: int = 3, chunks: int = 1) -> Picture:
    """A pipeline to play with, in the page itself: sliders for all of its numbers, no kernel needed.

    It begins with this schedule, a backward 2 forwards long and no link time.
    """
    schedule = make(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    p, m, v = schedule.ranks, schedule.micro_batches, schedule.chunks
    most = {key: top for key, _, _, top, _ in CONTROLS}
    controls = [[*c[:3], max(c[3], {"p": p, "m": m, "v": v}.get(c[0], 0)), c[4]] for c in CONTROLS]
    state = {"name": schedule.name, "p": p, "m": m, "v": max(v, min(2, most["v"])), "ratio": 2, "link": 0}
    stored = json.dumps({"state": state, "names": list(SCHEDULES), "controls": controls}).replace("<", "\\u003c")
    says, drawn = _says(schedule), script("schedules.js", "pipeline.js", "explorer.js")
    alt = f"Pipeline explorer, {schedule.name}, {m} micro-batches on {p} ranks. {says}"
    key = "".join(
        f'<span style="padding-right:14px"><span style="display:inline-block;width:11px;height:11px;'
        f'background:{color}"></span> {text}</span>'
        for color, text in ((SHADES["forward"][0], "forward"), (SHADES["backward"][0], "backward, or its input half"),
                            (SHADES["backward-weight"][0], "weight half"), ("rgba(128,128,128,.3)", "waits"),
                            (style.ROLE["communication"], "message on its way"))
    )
    page = (
        f'<div data-course-pipeline data-lm-suppress-shortcuts="true" role="group" '
        f'aria-label="{html.escape(alt, quote=True)}" '
        f'style="max-width:{style.WIDTH}px;font:{style.TEXT}px {style.FONT};padding:4px 8px;color:inherit">'
        f'<div style="font-weight:600;font-size:{style.TEXT + 1}px">Pipeline explorer: who computes which micro-batch, '
        f"when</div><div data-stage>{_frame(schedule)}</div>"
        f'<div data-line aria-live="polite" style="min-height:50px;padding-top:4px">{html.escape(says)}</div>'
        f'<div style="opacity:.85">{key}<br>Numbers are micro-batches; pale boxes are every second chunk. One forward '
        f"through all that a rank holds takes 1.</div>"
        f'<script type="application/json">{stored}</script><script>{drawn}</script></div>'
    )
    return Picture(page, alt)


def _frame(schedule: Schedule) -> str:
    """The boxes of the first picture, as `picture.frame` makes them; it needs no JavaScript."""
    timeline = schedule.simulate()
    end = timeline.end
    rows = ""
    for rank in range(schedule.ranks):
        boxes = ""
        for s in timeline.spans:
            if s.rank == rank:
                name, micro, *_, part = s.name.split()
                odd = int(part) // schedule.ranks % 2
                wide, color = 100 * s.seconds / end, SHADES[name][0]
                edge = f"0 0 0 1px {color}" if odd else "-1px 0 #808080"
                boxes += (
                    f'<div style="position:absolute;left:{100 * s.start / end:.4f}%;width:{wide:.4f}%;top:0;'
                    f"height:22px;background:{SHADES[name][odd]};color:{'black' if odd else style.ink(color)};"
                    f'box-shadow:inset {edge};overflow:hidden">'
                    f"{micro if wide >= 1.6 else ''}</div>"
                )
        rows += (
            f'<div style="padding-right:8px">rank {rank}</div><div style="position:relative;height:28px;'
            f'text-align:center;line-height:22px;font-size:11px;background:rgba(128,128,128,.12)">{boxes}</div>'
        )
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if end / n <= 16)
    marks = "".join(
        f'<div style="position:absolute;left:{100 * t / end:.4f}%">{t}</div>' for t in range(0, -int(-end // 1), every)
    )
    return (
        f'<div style="display:grid;grid-template-columns:max-content 1fr;gap:3px 0">{rows}'
        f'<div style="opacity:.75">t</div><div style="position:relative;height:18px;opacity:.75;font-size:11px">{marks}'
        "</div></div>"
    )


def _says(schedule: Schedule) -> str:
    """The line below the first picture, as `picture.says` makes it."""
    timeline = schedule.simulate()
    p, m, v = schedule.ranks, schedule.micro_batches, schedule.chunks
    text = f"One step takes {round(timeline.end, 2):g}. Ranks wait {100 * idle(timeline) + 1e-9:.1f} % of it"
    if abs(idle(timeline) - bubble(p, m, chunks=v, split=schedule.split)) < 1e-6:
        times = "3 m" if schedule.split else "v m" if v > 1 else "m"
        text += f": (p − 1)/({times} + p − 1) = {p - 1}/{(3 if schedule.split else v) * m + p - 1}"  # noqa: RUF001
    text += ". Micro-batches whose activations a rank holds at the most: "
    text += ", ".join(f"{h:.4g}" for h in schedule.held) + ". "
    at = [str(t) for t in range(int(timeline.end + 1e-9)) if all_busy(schedule, timeline.between(t, t + 1))]
    if not at:
        return text + "At no t are all ranks busy."
    return text + f"All ranks are busy at t = {', '.join(at[:12])}{', …' if len(at) > 12 else ''}."


def all_busy(schedule: Schedule, slot: object) -> bool:
    """Does every rank compute from the beginning of this unit of time to its end?"""
    return all(slot.busy(rank) > 1 - 1e-6 for rank in range(schedule.ranks))
