"""`report()`, which sends metrics to the notebook while a rank runs.

Under `torchrun`, where no notebook listens, it writes them into files, which `LivePlot.follow`
reads. Elsewhere, in the notebook and in a rank's child processes, it does nothing.
"""

import multiprocessing
import os
import time
from typing import Any

from ..errors import CourseError
from ..records import checked
from .wire import current


def report(step: int | None = None, **values: Any) -> None:
    """Send one record of metrics to the notebook, for `run.metrics` and the live plot.

    Under `torchrun` each rank appends its records to a file instead, runs/rank0.jsonl and so on, a
    line of JSON each: `LivePlot().follow("runs")` draws them. Elsewhere nothing is recorded.

    Args:
        step: the x axis, a whole number; counted from 0 when left out.
        values: numbers or 0-d tensors by name; `rank` and `time` are added by themselves.

    Raises:
        CourseError: the step is no whole number, or a value has no name, is not one number, or its
            name is `rank` or `time`; the message says what to write.
    """
    step, record = checked(step, values, CourseError)
    session = current()
    if session is not None:
        number = next(session.numbers)
        if step is None:
            step = number
        seconds = time.perf_counter() - session.started
        own: dict[str, Any] = {"rank": session.rank, "time": seconds, "step": step}
        session.records.append(own | record)
    elif _is_of_torchrun():
        from .. import dist_utils  # which imports torch

        dist_utils.report(step, **record)


def _is_of_torchrun() -> bool:
    """Whether this is a process of torchrun's, and none that one has started, or a launch's."""
    started = multiprocessing.parent_process() is None and "TORCHELASTIC_RUN_ID" in os.environ
    return started and "COURSE_DEVICE" not in os.environ
