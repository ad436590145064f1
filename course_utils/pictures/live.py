"""Curves that grow while the loop runs, drawn in at most 1.5 % of one core's time, kept as a PNG at
the end.
"""

import contextlib
import html
import json
import math
import operator
import os
import reprlib
import subprocess
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .. import style
from ..errors import CourseError
from ..style import as_float
from . import curves
from .display import Display, display_of, shell
from .picture import png_metadata

SHORTEST = 0.25  # seconds between two frames
PANELS = 16  # drawn at most: more take seconds, and nobody looks at all of them
SHARE = 0.015  # of one core's time that drawing may take
LINE = f"font:{style.TEXT}px {style.FONT};padding:3px 8px;font-variant-numeric:tabular-nums"


class LivePlot:
    """Curves by metric and rank. Give it values with `update`, or hand it to `live` or to `launch`.

    Args:
        names: a panel each, in this order; without names, a panel for every metric that comes. The
            first 16 are drawn.
        title: a line above the panels.
        total: the number of steps there will be, for the x axis and the time left.
        mean: of all ranks draw the mean, the highest and the lowest value, not a curve each.

    Every value is kept in `data`, {name: {rank: ([steps], [values])}}; a new LivePlot starts empty.
    """

    def __init__(
        self, *names: str, title: str = "", total: int | None = None, mean: bool = False
    ) -> None:
        if not all(isinstance(name, str) for name in names):
            raise CourseError(
                f"LivePlot got {reprlib.repr(names)}: give names one by one, "
                'as in LivePlot("loss", "accuracy").'
            )
        self.names = names
        self.title = title
        self.total = total
        self.mean = mean
        self._clear()

    def _clear(self) -> None:
        self.data: dict[str, dict[int, tuple[list[float], list[float]]]] = {}
        self.display: Display | None = None
        self._first = math.inf  # the lowest step
        self._next: dict[int, float] = {}  # rank -> the step after its last
        self._items: tuple[int, int, str] | None = None  # of `live`: done, of how many, called what
        self._unit = "rank"  # what its series are called
        self._open = False
        self._news = False
        self._begun = math.inf
        self._due = -math.inf

    def __repr__(self) -> str:
        """The metrics with their last values, over all ranks."""
        parts = []
        for name, series in self._panels().items():
            if lasts := [ys[-1] for _, ys in series.values()]:
                lasts.sort(key=lambda value: (math.isnan(value), value))
                ends = dict.fromkeys(map(style.number, (lasts[0], lasts[-1])))
                parts.append(f"{name} {' to '.join(ends)}")
        return f"{self.title or 'curves'}: {', '.join(parts) or 'no values'}"

    def update(self, step: float | None = None, **values: float) -> None:
        """Add values, numbers or 0-d tensors, at `step` (counted from 0 when left out); draw when a
        frame is due.

        Between frames this takes microseconds, plus the wait for a tensor. What is no number
        raises CourseError.
        """
        if not self._open:
            self._start()
        self._take(0, step, values)
        self._draw_if_due()

    def add(self, record: dict[str, Any]) -> None:
        """Add a rank's record, `{"rank": r, "time": s, "step": n, **values}`.

        Values that are no numbers are left out: a record of another program may have texts.
        """
        values = {
            name: value
            for name, value in record.items()
            if name not in ("rank", "step", "time") and isinstance(value, (int, float))
        }
        self._take(record["rank"], record["step"], values)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Say on the line below how far a loop is, from 0 on; draw when a frame is due."""
        self._items = done, total, unit
        if done:
            self._draw_if_due()
        else:
            self._begun = time.monotonic()
            self._start()

    def _take(self, rank: int, step: float | None, values: dict[str, Any]) -> None:
        """Add these values of `rank`, all of them or, with an error, none."""
        if type(step) is not int:
            step = self._next.get(rank, 0) if step is None else as_float(step, "step")
        numbers = {name: as_float(value, name) for name, value in values.items()}
        for name, value in numbers.items():
            xs, ys = self.data.setdefault(name, {}).setdefault(rank, ([], []))
            xs.append(step)
            ys.append(value)
        if abs(step) < 2**63:  # one can count from it
            self._first = min(self._first, step)
            self._next[rank] = step + 1
        self._news = True

    def follow(
        self,
        folder: str | os.PathLike,
        *,
        until: subprocess.Popen | Iterable[subprocess.Popen] = (),
    ) -> None:
        """Draw what the ranks of a run append to JSONL files in `folder`, a record a line, until
        the run ends: with `report` under torchrun, it is runs/ of the folder that torchrun runs in.

        until: the processes of the run, or its one process; without, what is there now is drawn.
        """
        processes = [until] if isinstance(until, subprocess.Popen) else [*until]
        self.open()
        self._begun, last = math.inf, -math.inf  # its time is that of its records
        shift = time.monotonic() - time.time()
        read: Counter[Path] = Counter()  # bytes, by file
        done = False
        try:
            while not done:
                # Asked before reading: what is written before the end is read.
                done = all(process.poll() is not None for process in processes)
                for record in _new_records(Path(folder), read):
                    self.add(record)
                    now = record["time"] + shift
                    self._begun, last = min(self._begun, now), max(last, now)
                if not done:
                    self.tick()
                    time.sleep(0.1)
        finally:
            self._end(last)
        if math.isinf(last):  # no record
            where = Path(folder).absolute()
            files = "no *.jsonl file with a record" if where.is_dir() else "no such folder"
            warnings.warn(f"nothing came from {where}: there is {files}", stacklevel=2)

    def open(self, unit: str = "rank") -> None:
        """Start afresh, empty, where the running cell prints; `unit`: "rank" or "core"."""
        self._clear()
        self._unit = unit
        self._start()

    def _start(self) -> None:
        self._open = True
        self._begun = min(self._begun, time.monotonic())
        if shell() is not None and self.display is None:
            waiting = "<i>waiting for the first values</i>"
            self.display = display_of(self)
            self.display.show({"text/html": waiting, "text/plain": repr(self)})

    def tick(self) -> float:
        """Draw if a frame is due and something is new; seconds until the next may be drawn. Never
        raises.
        """
        if self._open and self._news:
            self._draw_if_due()
        return min(max(self._due - time.monotonic(), SHORTEST / 5), 60.0)

    def close(self) -> None:
        """Draw everything once more, as a PNG that stays in the saved notebook. A second call
        changes nothing.
        """
        if self._open:
            self._end(time.monotonic())

    def _end(self, now: float) -> None:
        self._open = False
        self._show(now)

    def _draw_if_due(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        began = time.thread_time()
        self._show(now)
        self._news = False

        pause = (time.thread_time() - began) / SHARE
        # Long runs get rarer frames: of a cell that sends thousands of messages some are lost.
        self._due = now + max(SHORTEST, pause, (now - self._begun) / 60)

    def _show(self, now: float) -> None:
        if self.display is None:
            return
        try:
            line, panels = self._progress(now), self._panels()
            text = f"{self!r} ({line})" if panels else line
            draw = partial(curves.draw, panels, title=self.title, total=self.total, unit=self._unit)
            if not self._open and any(panels.values()):
                png = draw(foot=line).png()
                bundle = {"image/png": png}
                metadata = {"image/png": png_metadata(png, text)}
            else:
                drawn = draw().svg(repr(self)) if panels else ""
                bundle = {"text/html": f'{drawn}<div style="{LINE}">{html.escape(line)}</div>'}
                metadata = {}
            self.display.show(bundle | {"text/plain": text}, metadata)
        except Exception as error:  # a picture never ends a training run, nor hides how it ended
            warnings.warn(f"the live plot was not drawn: {error!r}", stacklevel=2)

    def _panels(self) -> curves.Panels:
        names = [*(self.names or self.data)][:PANELS]
        panels: dict[str, Any] = {name: self.data.get(name, {}) for name in names}
        if self.mean:
            panels = {name: _mean(series, self._unit) for name, series in panels.items()}
        return panels

    def _progress(self, now: float) -> str:
        """Items, rate, and the time left; at the end the time it took."""
        furthest = int(max(self._next.values(), default=0))
        done, total, unit = self._items or (furthest, self.total, "step")
        first = 0 if self._items else self._first  # of a run that was resumed, not 0
        here, seconds = max(0, done - first), now - self._begun
        parts = [f"{unit} {done:,} of {total:,}" if total else f"{unit} {done:,}"]
        if seconds > 0:
            if here >= seconds:
                parts.append(f"{style.number(here / seconds)} {unit}s/s")
            elif here:
                parts.append(f"{style.number(seconds / here)} s/{unit}")
            if not self._open:
                parts.append(f"took {style.duration(seconds, 2)}")
            elif here and total:
                left = max(0, as_float(total) - done) * seconds / here
                parts.append(f"{style.duration(left, 2)} left")

        without_panel = len(self.names or self.data) - PANELS
        if without_panel > 0:
            parts.append(f"{without_panel} more in plot.data and run.metrics")
        return " · ".join(parts)


def _mean(series: dict[int, tuple[list, list]], unit: str) -> dict[str, tuple[list, list]]:
    """The mean, highest and lowest value of each step that all ranks have reported; of one that
    comes again, in another epoch or after a restart, each time.
    """
    by_step = defaultdict(list)
    for xs, ys in series.values():
        times: Counter[float] = Counter()
        for x, y in zip(xs, ys, strict=True):
            by_step[x, times[x]].append(y)
            times[x] += 1
    whole = [(x, ys) for (x, _), ys in by_step.items() if len(ys) == len(series)]
    if not whole:
        return {}
    steps, values = [x for x, _ in whole], [ys for _, ys in whole]
    return {
        f"mean of {style.plural(len(series), unit)}": (steps, [sum(ys) / len(ys) for ys in values]),
        "highest": (steps, [*map(max, values)]),
        "lowest": (steps, [*map(min, values)]),
    }


def _new_records(folder: Path, read: Counter[Path]) -> Iterator[dict[str, Any]]:
    """What was written to the files since `read`, their bytes read so far; lines of other programs
    are left out.
    """
    for path in sorted(filter(Path.is_file, folder.glob("*.jsonl"))):
        with path.open("rb") as file:
            file.seek(read[path])
            lines = [line for line in file if line.endswith(b"\n")]  # not what is half-written
        read[path] += sum(map(len, lines))
        for line in lines:
            with contextlib.suppress(ValueError):  # a kill cut the line off
                record = json.loads(line)
                if _is_of_a_rank(record):
                    yield record


def _is_of_a_rank(record: Any) -> bool:
    return isinstance(record, dict) and all(
        isinstance(record.get(name), int | float) for name in ("rank", "step", "time")
    )


def live(iterable: Iterable, plot: LivePlot | None = None, *, unit: str = "step") -> Iterator:
    """Loop with a progress line, and close the plot when the loop ends, also by an error.

    Args:
        plot: the curves above the line; in the loop, `plot.update(loss=loss)` gives it values.
        unit: what an item is called: "step", "epoch".
    """
    plot = plot or LivePlot()
    total = operator.length_hint(iterable)
    plot.progress(0, total, unit)
    try:
        for done, item in enumerate(iterable, 1):
            yield item
            plot.progress(done, total, unit)
    finally:  # also when the loop is left by break or an error: Python closes this generator
        plot.close()
