"""`report()`, which sends metrics to the notebook while a rank runs.

Under `torchrun`, where no notebook listens, it writes them into files, which `LivePlot.follow`
reads. Elsewhere it does nothing.
"""

import os
import time
from typing import Any

from ..style import as_float
from .wire import current


def report(step: int | None = None, **values: Any) -> None:
    """Send one record of metrics to the notebook, for `run.metrics` and the live plot.

    Under `torchrun` each rank appends its records to a file instead, runs/rank0.jsonl and so on, a
    line of JSON each: `LivePlot().follow("runs")` draws them.

    Args:
        step: the x axis; counted from 0 when left out.
        values: numbers or 0-d tensors by name; `rank` and `time` are added by themselves.

    Raises:
        CourseError: a value is not one number.
        TypeError: its name is `rank` or `time`.
    """
    record: dict[str, float] = {name: as_float(value, name) for name, value in values.items()}
    if (session := current()) is not None:
        step = session.count if step is None else int(as_float(step))
        session.count += 1
        seconds = time.perf_counter() - session.started
        session.records.append(dict(rank=session.rank, time=seconds, step=step, **record))
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        from .. import dist_utils  # which imports torch

        dist_utils.report(step, **record)
