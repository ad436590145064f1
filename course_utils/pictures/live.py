"""Curves that grow while the loop runs, drawn in at most two percent of one core's time, kept as a PNG at the end."""

import base64
import contextlib
import html
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from .. import style
from ..errors import CourseError
from . import board, curves
from .picture import png_width
from .screen import Place, open_plots, place_of, shell

T = TypeVar("T")

SHORTEST = 0.25  # seconds between two frames, and between two measurements of a rate
SHARE = 0.02  # of one core's time that drawing may take
QUIET = 120.0  # seconds without anything new after which `follow` ends
RATE = "steps/s"


def as_float(value: Any) -> float:
    """A number of Python, NumPy or torch as a float; what is none, or several, raises in their own words."""
    return float(value.item() if hasattr(value, "item") else value)  # float(tensor) warns of its gradient


class LivePlot:
    """Curves by metric and rank. Give it values with `update`, or hand it to `live` or to `launch`.

    Args:
        names: a panel each, in this order; without names, a panel for every metric that comes.
            "steps/s" is measured by itself.
        title: a line above the panels.
        total: the number of steps there will be, for the x axis, the time left and the progress bar.

    Every value is kept in `data`, {name: {rank: ([steps], [values])}}; a new LivePlot starts empty.
    """

    def __init__(self, *names: str, title: str = "", total: int | None = None) -> None:
        for name in names:
            if not isinstance(name, str):
                raise CourseError(f"LivePlot({name!r}): a panel is the name of a metric, for example LivePlot('loss').")
        self.names, self.title, self.total = names, title, total
        self._clear()

    def _clear(self) -> None:
        self.data: dict[str, dict[int, tuple[list[float], list[float]]]] = {}
        self._counts: dict[int, float] = {}  # rank -> the next step, for steps that are not given
        self._marks: dict[int, tuple[float, float]] = {}  # rank -> (time, step) where measuring its rate began
        self._latest: dict[int, float] = {}  # rank -> time of its last values, on its own clock
        self._cell: object = None  # to which the place belongs
        self._place = Place()
        self._begun, self._due = float("inf"), float("-inf")
        self._ended: float | None = None
        self._items: tuple[int, int | None, str] | None = None  # of `live`: how many are done, of how many, called what
        self._open = self._dirty = self._failed = False
        self._unit = "rank"  # what the series are called: "rank 0", "core 0"
        self._of_a_run = False  # of `launch`, which notes it for the board by itself
        self._elsewhere = False  # of a run that the notebook did not start

    def __repr__(self) -> str:
        """The metrics with their last values, over all ranks."""
        parts = []
        for name, series in self._panels().items():
            if lasts := [ys[-1] for _, ys in series.values()]:
                ends = dict.fromkeys(map(style.number, (min(lasts), max(lasts))))
                parts.append(f"{name} {' to '.join(ends)}")
        return f"{self.title or 'curves'}: {', '.join(parts) or 'no values'}"

    def update(self, step: float | None = None, **values: float) -> None:
        """Add values, numbers or 0-d tensors, at `step` (counted from 0 when left out); draw when a frame is due.

        Between frames this takes a few microseconds, plus the wait for a tensor that is still being computed.

        Raises:
            TypeError, ValueError, RuntimeError: a value is not one number.
        """
        now = time.monotonic()
        if not self._open:
            self._start(now)
        self._take(0, step, now, values)
        if now >= self._due:
            self._frame(now)

    def add(self, record: dict[str, Any]) -> None:
        """Add one record of a rank, `{"rank": r, "time": s, "step": n, **values}`; what is not a number is left out."""
        values = {name: value for name, value in record.items() if isinstance(value, (int, float))}
        rank, step, at = values.pop("rank", 0), values.pop("step", None), values.pop("time", None)
        self._take(rank, step, time.monotonic() if at is None else at, values)

    def _take(self, rank: int, step: float | None, now: float, values: dict[str, Any]) -> None:
        """Add these values of `rank`, all of them or, with an error, none."""
        if step is None:
            step = self._counts.get(rank, 0)
        elif type(step) is not int:
            step = as_float(step)
        for name, value in {name: as_float(value) for name, value in values.items()}.items():
            self._append(name, rank, step, value)
        self._counts[rank], self._latest[rank], self._dirty = step + 1, now, True
        if RATE not in values:  # else the caller measures it
            begun, first = self._marks.setdefault(rank, (now, step))
            if step < first:
                self._marks[rank] = now, step
            elif now - begun >= SHORTEST and step > first:
                self._rate(rank, now, step)

    def _append(self, name: str, rank: int, step: float, value: float) -> None:
        xs, ys = self.data.setdefault(name, {}).setdefault(rank, ([], []))
        xs.append(step)
        ys.append(value)

    def _rate(self, rank: int, now: float, step: float) -> None:
        begun, first = self._marks[rank]
        self._append(RATE, rank, step, (step - first) / (now - begun))
        self._marks[rank] = now, step

    def follow(self, folder: str | os.PathLike, *, until: Iterable[subprocess.Popen] | Callable[[], Any] = ()) -> None:
        """Draw what the ranks of a run append to JSONL files in `folder`, a record a line, until the run ends.

        Args:
            folder: where the files are or will be, on a disk that hosts share, too; `runs`, for what `export` wrote.
            until: the processes of the run, or a function that is asked ten times a second whether it is over. Without
                them, what is there now is drawn.
        """
        over = until if callable(until) else lambda: None not in [process.poll() for process in until]
        self.open()
        self._of_a_run, self._elsewhere, self._begun = False, True, float("inf")  # it began with its first record
        read: dict[Path, int] = {}
        shift, news, done = time.monotonic() - time.time(), time.monotonic(), False
        try:
            while not done:
                done = over()  # asked before reading: what is written before the end is read
                for path in sorted(Path(folder).glob("*.jsonl")):
                    whole = b""
                    with contextlib.suppress(OSError), path.open("rb") as file:  # a shared disk may be away
                        file.seek(read.get(path, 0))
                        whole = b"".join(line for line in file if line.endswith(b"\n"))  # not what is half-written
                    read[path] = read.get(path, 0) + len(whole)
                    for line in whole.splitlines():
                        news = time.monotonic()
                        with contextlib.suppress(ValueError, TypeError, AttributeError):  # a kill cut the line off
                            record = json.loads(line)
                            at = record.get("time", time.time()) + shift
                            self.add(record | {"time": at})
                            self._begun = min(self._begun, at)
                self.tick()
                if not done and time.monotonic() - news > QUIET:
                    print(f"Nothing new in {folder} for {QUIET:g} s: the plot ends here. The run may go on.")
                    return
                time.sleep(0 if done else 0.1)
        finally:
            self.close()

    def open(self, unit: str = "rank") -> None:
        """Show an empty picture where the running cell prints; after `close`, start afresh. `unit`: "rank", "core"."""
        if self._ended is not None:
            self._clear()
        self._unit, self._of_a_run = unit, True
        self._start(time.monotonic())
        if shell() is not None:
            self._place.show({"text/html": "<i>waiting for the first values</i>", "text/plain": repr(self)})

    def _start(self, now: float) -> None:
        self._open, self._ended, self._begun = True, None, min(self._begun, now)
        if shell() is not None:
            cell, place = place_of(self)
            if cell != self._cell:
                self._cell, self._place = cell, place

    def tick(self) -> float:
        """Draw if a frame is due and something is new; seconds until the next may be drawn. Never raises."""
        now = time.monotonic()
        if self._open and self._dirty and now >= self._due:
            self._frame(now)
        return min(max(self._due - now, SHORTEST / 5), 60.0)

    def close(self) -> None:
        """Draw everything once more, as a PNG that stays in the saved notebook. A second call changes nothing."""
        if not self._open:
            return
        self._open, self._ended = False, time.monotonic()
        open_plots.discard(self)
        for rank, (begun, first) in self._marks.items():  # a run shorter than a rate's window still gets its one rate
            last, at = self._counts[rank] - 1, self._latest[rank]
            if rank not in self.data.get(RATE, {}) and last > first and at > begun:
                self._rate(rank, at, last)
        if not self._of_a_run:
            lasts = {name: series[min(series)][1][-1] for name, series in self.data.items()}
            board.note(self.title or ", ".join(lasts), lasts, seconds=self._ended - self._begun)
        if shell() is not None:
            with contextlib.suppress(Exception):  # a picture never ends a training run, nor hides how it ended
                self._place.show(*self._picture(self._ended))

    def _frame(self, now: float) -> None:
        began = time.thread_time()
        if shell() is not None and not self._failed:
            try:
                self._place.show({"text/html": self._html(now), "text/plain": repr(self)})
            except Exception as error:  # a picture never ends a training run
                self._failed = True
                print(f"The live plot stopped ({type(error).__name__}: {error}); the values are still collected.")
        self._dirty = False
        # Long runs get rarer frames: of a cell that sends thousands of messages some are lost.
        self._due = now + max(SHORTEST, (time.thread_time() - began) / SHARE, (now - self._begun) / 60)

    def _each(self, iterable: Iterable[T], unit: str) -> Iterator[T]:
        total = None
        with contextlib.suppress(TypeError):  # it has no length
            total = len(iterable)
        self._begun, self._items = time.monotonic(), (0, total, unit)
        self._start(self._begun)
        try:
            for done, item in enumerate(iterable, 1):
                yield item
                self._items = done, total, unit
                if (now := time.monotonic()) >= self._due:
                    self._frame(now)
        finally:  # also reached when the loop is left by break, an error or an interrupt: Python closes this generator
            self.close()

    def _panels(self) -> curves.Panels:
        return {name: self.data.get(name, {}) for name in self.names or [name for name in self.data if name != RATE]}

    def _draw(self, foot: str = "") -> curves.Drawing:
        return curves.draw(self._panels(), title=self.title, total=self.total, unit=self._unit, foot=foot)

    def _progress(self, now: float) -> tuple[str, float]:
        """Items, rate, and the time left, at the end the time it took; and which part is done, from 0 to 1."""
        if self._elsewhere:  # ranks may be lost: the furthest counts, and the clock of the run
            steps, now = int(max(self._counts.values(), default=0)), max(self._latest.values(), default=now)
        else:
            steps = int(min(self._counts.values(), default=0))  # that every rank has finished
        done, total, unit = self._items or (min(steps, self.total or steps), self.total, "step")
        seconds, parts = max(now - self._begun, 1e-9), [f"{unit} {done:,}" + (f" of {total:,}" if total else "")]
        if done:
            rate, each = style.number(done / seconds), style.number(seconds / done)
            parts.append(f"{rate} {unit}s/s" if done >= seconds else f"{each} s/{unit}")
        if self._ended is not None:
            parts.append(f"took {style.duration(seconds, 2)}")
        elif done and total:
            parts.append(f"{style.duration(max(0, total - done) * seconds / done, 2)} left")
        return " · ".join(parts), min(1.0, done / total) if total else 0.0

    def _html(self, now: float) -> str:
        line, part = self._progress(now)
        bar = (f'<div style="height:3px;margin:5px 0 0 8px;max-width:360px;background:rgba(128,128,128,.3)"><div style='
               f'"height:3px;width:{100 * part:.1f}%;background:{style.RANK[0]}"></div></div>')
        return ((self._draw().svg(repr(self)) if self._panels() else "") + bar * (part > 0 and self._ended is None)
                + f'<div style="font:{style.TEXT}px {style.FONT};padding:3px 8px;font-variant-numeric:tabular-nums">'
                f"{html.escape(line)}</div>")

    def _picture(self, now: float) -> tuple[dict[str, str], dict]:
        line = self._progress(now)[0]
        if not any(self._panels().values()):
            return {"text/html": self._html(now), "text/plain": line}, {}
        image, text = self._draw(line).png(), f"{self!r} ({line})"
        look = {"width": png_width(image), "alt": text}
        return {"image/png": base64.b64encode(image).decode(), "text/plain": text}, {"image/png": look}


def live(iterable: Iterable[T], plot: LivePlot | None = None, *, unit: str = "step") -> Iterator[T]:
    """Loop with a progress line, and close the plot when the loop ends, by an error or an interrupt, too.

    Args:
        iterable: what to loop over: batches, epochs, a range.
        plot: the curves to show above the line; give it values in the loop with `plot.update(loss=loss)`.
        unit: what an item is called: "step", "epoch".
    """
    return (plot or LivePlot())._each(iterable, unit)
