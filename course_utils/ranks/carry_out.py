"""The one way to carry out a launch: start the processes, listen, leave nothing behind, say what failed."""

from __future__ import annotations

import contextlib
import linecache
import time
from functools import partial

from ..ground.errors import RankError, in_words
from ..live import kept
from ..live.plot import LivePlot
from ..pictures.gantt import finding
from . import failures
from .heard import Heard
from .printer import Printer
from .processes import Ranks
from .run import Run
from .session import Task
from .traffic import Traffic

MOST, MOST_SPANS = 2000, 300  # that are looked at for the board: a millisecond's work


def carry_out(
    run: Run, processes: Ranks, task: Task, *, live: LivePlot | None, time_limit: float | None, show: bool
) -> Run:
    """Start `processes`, fill `run` with what they say until all are done, and leave nothing behind."""
    printer = Printer(run) if show else None
    heard = Heard(
        run,
        on_output=printer.show if printer else None,
        on_record=live.add if live is not None else None,
        tick=live.tick if live is not None else None,
    )
    memory_kills = failures.kills_for_memory()
    if live is not None:
        live.open(run.unit)
    try:
        with processes:
            processes.start(task)
            failure = heard.until_done(processes, time_limit)
            if failure is None:
                processes.release()
            else:
                message = failure(processes, failures.kills_for_memory() > memory_kills)
            heard.take(processes.drain())
    except KeyboardInterrupt as error:
        said = f"interrupted; every {run.unit} was ended."
        error._render_traceback_ = partial(in_words, error, said)  # IPython's hook; scripts see the usual traceback
        raise
    finally:
        heard.close(time.perf_counter() - task.began)
        if printer:
            printer.close()
        if live is not None:
            live.close()
    if failure is not None:
        raise RankError(
            message.text, rank=message.rank, cause=message.cause, traceback=message.traceback, run=run,
            advice=message.advice,
        )  # fmt: skip
    with contextlib.suppress(Exception):  # a note for the board never spoils a run
        _keep(run, live)
    return run


def _keep(run: Run, live: LivePlot | None) -> None:
    """For the reader's board: what the first rank that reported measured, the timeline's finding, what rank 0 sent."""
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
                  seconds=run.seconds, timeline=timeline, sent=sent)  # fmt: skip


def cells() -> dict:
    """The notebook's cells in `linecache`, without the hook by which IPython keeps them fresh."""
    return {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
