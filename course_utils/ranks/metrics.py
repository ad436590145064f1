"""`report()`, which sends metrics to the notebook while a rank runs.

Under `torchrun`, where no notebook listens, it writes them into files, which `LivePlot.follow`
reads. Elsewhere, in the notebook and in a rank's child processes, it does nothing.
"""

import os
import reprlib
import time
from typing import Any

from ..errors import CourseError
from ..style import NO_NUMBER, as_float
from .wire import current


def report(*first: int | None, step: int | None = None, **values: Any) -> None:
    """Send one record of metrics to the notebook, for `run.metrics` and the live plot.

    Under `torchrun` each rank appends its records to a file instead, runs/rank0.jsonl and so on, a
    line of JSON each: `LivePlot().follow("runs")` draws them.

    Args:
        step: the x axis, a whole number, which may also stand first; counted from 0 when left out.
        values: numbers or 0-d tensors by name; `rank` and `time` are added by themselves.

    Raises:
        CourseError: a value is not one number, or its name is `rank` or `time`; the message says
            what to write.
    """
    record: dict[str, Any] = {"rank": None, "time": None, "step": None}
    name, value = "step", first
    try:
        if first:
            [step] = first if step is None else (*first, step)
        if step is not None:
            value = step
            record["step"] = int(step)
            if step != record["step"] or not (values or isinstance(step, int)):
                raise ValueError
        for name, value in values.items():
            if name in record:
                raise ValueError
            record[name] = as_float(value)
    except NO_NUMBER as error:
        if isinstance(error, RuntimeError) and "to Scalar" not in str(error):
            raise  # a device has failed
        raise CourseError(
            f"report got {name}={reprlib.repr(value)}. A step is one whole number; each value is "
            "one number that fits a float, under a name that is not rank or time: "
            "report(loss=0.5), of a dict report(**values)."
        ) from None

    session = current()
    if session is not None:
        number = next(session.numbers)
        if step is None:
            record["step"] = number
        record["rank"] = session.rank
        record["time"] = time.perf_counter() - session.started
        session.records.append(record)
    elif "TORCHELASTIC_RUN_ID" in os.environ and "COURSE_DEVICE" not in os.environ:
        from .. import dist_utils  # which imports torch

        dist_utils.report(step, **values)
