"""A finished run's note for the reader's board: what it measured, in short."""

from __future__ import annotations

from ..pictures import kept
from ..pictures.gantt import finding
from ..pictures.live import LivePlot
from .run import Run
from .traffic import Traffic

MOST, MOST_SPANS = 2000, 300  # that are looked at: a millisecond's work


def note(run: Run, live: LivePlot | None) -> None:
    """Keep what the first rank that reported measured, the timeline's finding and what rank 0 sent."""
    if not kept.wanted(run.name):
        return
    series: dict[str, tuple[list, list]] = {}
    if live is not None:
        series = {name: by_rank[min(by_rank)] for name, by_rank in live.data.items()}
    else:
        mine = (record for record in run.metrics[-MOST:] if record["rank"] == run.metrics[0]["rank"])
        for record in mine:
            for name, value in record.items():
                if name not in ("rank", "time", "step"):
                    xs, ys = series.setdefault(name, ([], []))
                    xs.append(record["step"])
                    ys.append(value)
    timeline = finding(run.timeline) if 0 < len(run.timeline) <= MOST_SPANS else ""
    first = run.results[0]
    found = [value for value in (first.values() if isinstance(first, dict) else [first]) if isinstance(value, Traffic)]
    sent = sum(traffic.bytes_sent for traffic in found)
    if series or timeline or sent:
        title = live.title if live is not None else ""
        kept.keep(run.name, series, title=title, ranks=run.ranks, unit=run.unit, device=run.device,
                  seconds=run.seconds, timeline=timeline, sent=sent)
