"""Curves that grow while the loop runs, drawn in at most two percent of one core's time, kept as a PNG at the end."""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from .. import style
from ..errors import CourseError
from . import curves, kept
from .files import Files, Until, ended
from .picture import png_width
from .progress import Progress
from .screen import Place, forget, place_of, shell
from .values import RATE, SHORTEST, Values, number

T = TypeVar("T")

SHARE = 0.02  # of one core's time that drawing may take
FRAMES = 400  # at most, from one plot: a cell that sends thousands of messages loses some


class LivePlot:
    """Curves by metric and rank. Give it values with `update`, or hand it to `live` or to `launch`.

    Args:
        names: a panel each, in this order; without names, a panel for every metric that comes.
            "steps/s" is measured by itself.
        title: a line above the panels.
        total: the number of steps there will be, for the x axis, the time left and the progress bar.

    Every value is kept in `data`, {name: {rank: ([steps], [values])}}; a new LivePlot starts empty.
    With the environment variable COURSE_LIVE=0 only the final picture is drawn.
    """

    def __init__(self, *names: str, title: str = "", total: int | None = None,
                 clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time) -> None:
        for name in names:
            if not isinstance(name, str) or not name:
                raise CourseError(f"LivePlot({name!r}): a panel is the name of a metric, for example LivePlot('loss').")
        if total is not None and not (isinstance(total, int) and total > 0):
            raise CourseError(f"LivePlot(total={total!r}): give a whole number of steps, or None.")
        self.names, self.title, self.total = tuple(dict.fromkeys(names)), title, total
        self.frames = 0
        self._clock, self._cpu = clock, cpu
        self._off = os.environ.get("COURSE_LIVE", "1") == "0"
        self._clear()

    def _clear(self) -> None:
        self._cell: object = None  # to which the place belongs
        self._place = Place()
        self._values = Values()
        self._begun = self._due = float("-inf")
        self._ended: float | None = None
        self._loop: Progress | None = None  # the progress of `live`
        self._open = self._dirty = False
        self._unit = "rank"  # what the series are called: "rank 0", "core 0"
        self._of_a_run = False  # of `launch`, which keeps it for the board by itself

    @property
    def data(self) -> dict[str, dict[int, tuple[list[float], list[float]]]]:
        """All values by name, then by rank, each as a list of steps and a list of values."""
        return self._values.data

    def __repr__(self) -> str:
        ranks, steps = self._values.size()
        shown = ", ".join(self.names or self.data)
        return f"LivePlot({shown}): {steps} steps" + (f", {ranks} {self._unit}s" if ranks > 1 else "")

    def update(self, step: float | None = None, *, rank: int = 0, **values: float) -> None:
        """Add values, numbers or 0-d tensors, at `step` (counted from 0 when left out); draw when a frame is due.

        Between frames this takes a few microseconds, plus the wait for a tensor that is still being computed.

        Raises:
            TypeError, ValueError, RuntimeError: a value is not one number, in the words of Python or torch.
        """
        now = self._clock()
        if not self._open:
            self._start(now)
        self._values.take(step, rank, now, values)
        self._dirty = True
        if now >= self._due:
            self._frame(now)

    def add(self, record: dict[str, Any]) -> None:
        """Add one record of a rank, `{"rank": r, "time": s, "step": n, **values}`; what is not a number is left out."""
        values = dict(record)
        rank, at, step = values.pop("rank", 0), values.pop("time", None), values.pop("step", None)
        for name in list(values):
            try:
                values[name] = number(values[name])
            except (TypeError, ValueError, RuntimeError):
                del values[name]
        with contextlib.suppress(CourseError, TypeError, ValueError):
            self._values.take(step, rank, self._clock() if at is None else at, values)
            self._dirty = True

    def follow(self, folder: str | os.PathLike, *, until: Until = None, limit: float = 120.0) -> None:
        """Draw what the ranks of a run write to JSONL files in `folder`, one a rank, a record a line, until it ends.

        Args:
            folder: where they are or will be, on a disk that hosts share, too; `runs`, for what `export` wrote.
            until: the run's `subprocess.Popen`, several, or a function that is asked ten times a second whether the
                run is over. Without it, what is there now is drawn.
            limit: after so many seconds without anything new, the plot ends with a sentence.
        """
        files, over = Files(folder), ended(until)
        self.open(of_a_run=False)
        shift = self._clock() - time.time()
        self._loop = loop = Progress(self.total, "step", self._clock())
        try:
            for one in files.follow(over, limit, self.tick):
                if isinstance(one, int):
                    self._values.forget(one)
                elif len(one) > 1:
                    at = one.get("time", time.time()) + shift
                    self.add(one | {"time": at})
                    loop.saw(self._values.furthest(), at)
        finally:
            self.close()

    def open(self, unit: str = "rank", *, of_a_run: bool = True) -> None:
        """Show an empty picture where the running cell prints; after `close`, start afresh. `unit`: "rank", "core"."""
        if self._ended is not None:
            self._clear()
        self._unit, self._of_a_run = unit, of_a_run
        self._start(self._clock())
        if not self._off and shell() is not None:
            self._place.show({"text/html": "<i>waiting for the first values</i>", "text/plain": repr(self)})

    def _start(self, now: float) -> None:
        self._open, self._ended = True, None
        if self._begun == float("-inf"):
            self._begun = now
        if shell() is not None:
            cell, place = place_of(self, self.close)
            if cell != self._cell:
                self._cell, self._place = cell, place

    def tick(self) -> float:
        """Draw if a frame is due and something is new; seconds until the next may be drawn. Never raises."""
        now = self._clock()
        if self._open and self._dirty and now >= self._due:
            self._frame(now)
        return min(max(self._due - now, SHORTEST / 5), 60.0)

    def close(self) -> None:
        """Draw everything once more, as a PNG that stays in the saved notebook. A second call changes nothing."""
        if not self._open:
            return
        self._open, self._ended = False, self._clock()
        forget(self)
        self._values.settle()
        if not self._of_a_run and self.data:
            first = {name: series[min(series)] for name, series in self.data.items()}
            kept.keep(self.title or ", ".join(first), first, seconds=self._ended - self._begun)
        if shell() is not None:
            with contextlib.suppress(Exception):  # a picture never ends a training run, nor hides how it ended
                self._place.show(*self._picture())

    def _frame(self, now: float) -> None:
        if self._off or self.frames >= FRAMES or shell() is None:
            self._due = float("inf") if self._off or self.frames >= FRAMES else now + SHORTEST
            return
        began = self._cpu()
        try:
            self._place.show({"text/html": self._html(now), "text/plain": repr(self)})
        except Exception as error:  # a picture never ends a training run
            self._off = True
            print(f"The live plot stopped ({type(error).__name__}: {error}); the values are still collected.")
        self.frames += 1
        self._dirty = False
        # Long runs get rarer frames, so that FRAMES of them last for more than an hour.
        self._due = now + max(SHORTEST, (self._cpu() - began) / SHARE, (now - self._begun) / 60)

    def _each(self, iterator: Iterator[T], total: int | None, unit: str) -> Iterator[T]:
        begun = self._clock()
        self._loop = loop = Progress(total, unit, begun)
        self._start(begun)
        try:
            for item in iterator:
                yield item
                loop.done += 1
                if (now := self._clock()) >= self._due:
                    self._frame(now)
        finally:  # also reached when the loop is left by break, an error or an interrupt: Python closes this generator
            self.close()

    def _panels(self) -> curves.Panels:
        return {name: self.data.get(name, {}) for name in (self.names or [n for n in self.data if n != RATE])}

    def _text(self) -> str:
        parts = []
        for name, series in self._panels().items():
            lasts = [ys[-1] for _, ys in series.values() if ys]
            if lasts:
                low, high = style.number(min(lasts)), style.number(max(lasts))
                parts.append(f"{name} {low}" + (f" to {high}" if low != high else ""))
        return f"{self.title or 'curves'}: {', '.join(parts) or 'no values'}"

    def _progress(self) -> Progress:
        done = self._values.done()
        return self._loop or Progress(self.total, "step", self._begun, min(done, self.total or done))

    def _draw(self, panels: curves.Panels, foot: str = "") -> curves.Drawing:
        return curves.draw(panels, title=self.title, total=self.total, unit=self._unit, foot=foot)

    def _html(self, now: float) -> str:
        panels = self._panels()
        drawn = self._draw(panels).svg(self._text()) if panels else ""
        return drawn + self._progress().html(now, ended=self._ended is not None)

    def _picture(self) -> tuple[dict[str, str], dict]:
        foot, panels = self._progress().text(self._ended, ended=True), self._panels()
        if not any(panels.values()):
            return {"text/html": self._html(self._ended), "text/plain": foot}, {}
        text = f"{self._text()} ({foot})"
        try:
            image = self._draw(panels, foot).png()
        except Exception as error:  # no matplotlib, or it failed: the last frame stays
            return {"text/html": self._html(self._ended), "text/plain": f"{text}; no PNG: {error}"}, {}
        look = {"width": png_width(image), "alt": text}
        return {"image/png": base64.b64encode(image).decode(), "text/plain": text}, {"image/png": look}


def live(iterable: Iterable[T], plot: LivePlot | None = None, *, total: int | None = None,
         unit: str = "step") -> Iterator[T]:
    """Loop with a progress line, and close the plot when the loop ends, by an error or an interrupt, too.

    Args:
        iterable: what to loop over: batches, epochs, a range.
        plot: the curves to show above the line; give it values in the loop with `plot.update(loss=loss)`.
        total: the number of items, where `iterable` has no length.
        unit: what an item is called: "step", "epoch".
    """
    if plot is not None and not isinstance(plot, LivePlot):
        raise CourseError(f"live(…, {plot!r:.60}): the second argument is a LivePlot, for example LivePlot('loss').")
    try:
        iterator = iter(iterable)
    except TypeError:
        text = f"live({iterable!r:.60}) has nothing to loop over: give it a DataLoader, a list or a range."
        raise CourseError(text) from None
    if total is None:
        with contextlib.suppress(TypeError):
            total = len(iterable)
    return (plot or LivePlot())._each(iterator, total, unit)
