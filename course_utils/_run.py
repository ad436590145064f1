"""What a launch gives back, and the one way to carry one out: start, listen, end, and say what failed."""

from __future__ import annotations

import linecache
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import _failures
from ._heard import Heard
from .errors import RankError
from .timeline import Timeline

if TYPE_CHECKING:
    from ._processes import Ranks
    from ._session import Task
    from .live import LivePlot


@dataclass
class Run:
    """What a launch gave back."""

    ranks: int
    device: str
    backend: str | None
    results: list = field(default_factory=list)  # what the function returned, by rank
    metrics: list[dict] = field(default_factory=list)  # what `report` sent: rank, time (s), step, and the values
    output: list[str] = field(default_factory=list)  # what each rank printed
    timeline: Timeline = field(default_factory=lambda: Timeline([]))
    seconds: float = 0.0
    unit: str = "rank"  # what there are `ranks` of: "rank"; from `xla.launch` "core", or "program" with SPMD

    def column(self, name: str, *, rank: int = 0) -> list[float]:
        """The values that one rank reported under `name`, in order."""
        return [record[name] for record in self.metrics if record["rank"] == rank and name in record]

    def __repr__(self) -> str:
        group = self.backend or "no process group"
        units = f"{self.ranks} {self.unit}{'s' * (self.ranks != 1)}"
        return f"Run({units} on {self.device}, {group}, {self.seconds:.2f} s)"


def carry_out(
    run: Run, processes: Ranks, task: Task, *, live: LivePlot | None, time_limit: float | None, show: bool
) -> Run:
    """Start `processes`, fill `run` with what they say until all are done, and leave nothing behind."""
    heard = Heard(run, live, show)
    memory_kills = _failures.kills_for_memory()
    if live is not None:
        live.open(run.unit)
    try:
        with processes:
            processes.start(task)
            failure = heard.until_done(processes, time_limit)
            if failure is None:
                processes.release()
            else:
                message = failure(processes, _failures.kills_for_memory() > memory_kills)
            heard.take(processes.drain())
    finally:
        heard.close(time.perf_counter() - task.began)
    if failure is not None:
        raise RankError(message.text, rank=message.rank, cause=message.cause, traceback=message.traceback, run=run)
    return run


def cells() -> dict:
    """The notebook's cells in `linecache`, without the hook by which IPython keeps them fresh."""
    return {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
