"""The one way to carry out a launch: start the processes, listen, leave nothing behind, say what failed."""

from __future__ import annotations

import contextlib
import linecache
import time
from functools import partial

from ..errors import RankError, in_words
from ..pictures.live import LivePlot
from . import failures
from .heard import Heard
from .noted import note
from .printer import Printer
from .processes import Ranks
from .run import Run
from .session import Task


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
        raise RankError(**vars(message), run=run)
    with contextlib.suppress(Exception):  # a note never spoils a run
        note(run, live)
    return run


def cells() -> dict:
    """The notebook's cells in `linecache`, without the hook by which IPython keeps them fresh."""
    return {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
