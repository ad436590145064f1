"""The pipeline explorer: sliders and a schedule drawn from them, in the page itself."""

import base64
import html
import json

from .. import style
from ..schedules import SCHEDULES, make
from .gantt_chart import SHADES, pipelines
from .picture import Picture, controls, script

COLORS = {
    "F": SHADES["forward"],
    "B": SHADES["backward"],
    "W": SHADES["backward-weight"],
    "S": [style.ROLE["communication"]] * 2,
}
CONTROLS = [  # name in the state, words, least, most, step
    ("p", "ranks (p)", 1, 8, 1),
    ("m", "micro-batches (m)", 1, 16, 1),
    ("v", "chunks a rank (v)", 1, 4, 1),
    ("ratio", "backward : forward", 0.5, 3, 0.5),
    ("link", "link time", 0, 1, 0.1),
]
MARK = "display:inline-block;width:11px;height:11px"


def explorer() -> Picture:
    """A pipeline to play with: sliders for all of its numbers; a PNG where no JavaScript runs."""
    first = pipelines(
        {"GPipe, 3 micro-batches on 2 ranks": make("GPipe", ranks=2, micro_batches=3).simulate()},
        unit="forwards",
    )
    marks = {
        "forward": COLORS["F"][0],
        "backward, or its input half": COLORS["B"][0],
        "weight half": COLORS["W"][0],
        "waits": "rgba(128,128,128,.3)",
        "message on its way": COLORS["S"][0],
    }
    legend = "".join(
        f'<span style="padding-right:14px"><span style="{MARK};background:{color}"></span> '
        f"{text}</span>"
        for text, color in marks.items()
    )
    legend += "<br>Numbers are micro-batches; pale boxes are every second chunk. "
    legend += "One forward through all that a rank holds takes 1."
    data = {
        "state": {"name": "GPipe", "p": 2, "m": 3, "v": 2, "ratio": 2, "link": 0},
        "names": [*SCHEDULES],
        "controls": CONTROLS,
        "colors": COLORS,
        "legend": legend,
    }
    stored = json.dumps(data).replace("<", "\\u003c")  # "</script>" would end what holds it
    alt = f"Pipeline explorer. {first.alt}"
    drawn = base64.b64encode(first.png or b"").decode()
    return Picture(
        f'<div data-course-pipeline {controls(alt)} style="{style.BOX};color:inherit">'
        f'<div style="font-weight:600;font-size:{style.TEXT + 1}px">'
        "Pipeline explorer: who computes which micro-batch, when</div>"
        f'<div data-stage><img src="data:image/png;base64,{drawn}" '
        f'width="{style.WIDTH}" alt="{html.escape(first.alt)}"></div>'
        f'<div data-line aria-live="polite" style="min-height:50px;padding-top:4px"></div>'
        '<div data-key style="opacity:.85"></div>'
        f'<script type="application/json">{stored}</script>'
        f"<script>{script('schedules.js', 'pipeline_explorer.js')}</script></div>",
        alt,
    )
