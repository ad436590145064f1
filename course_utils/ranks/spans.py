"""`span()`: named stretches of a rank's time, on one clock for all ranks.

On an accelerator they are measured by events, because calls return before the work is done.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from ..errors import CourseError


class Recorder:
    """The spans of this process; off until `start_recording`, so that `span` does no harm outside
    of a rank.
    """

    pid = 0
    synchronize: Callable[[], None] | None = None  # where work goes on after its call

    def start_recording(self, device: str) -> None:
        """Record from now on; a mark is the time, or an event of the accelerator."""
        self.pid = os.getpid()
        self.mark: Callable[[], Any] = time.perf_counter
        self.spans: deque[tuple[str, Any, Any, str]] = deque()  # of all threads
        if device == "cpu":
            return

        import torch

        def event() -> torch.Event:
            event = torch.Event(device, enable_timing=True)
            event.record()
            return event

        self.mark = event
        self.synchronize = torch.accelerator.synchronize
        self.synchronize()
        self.zero = event()
        self.synchronize()
        self.zero_seconds = time.perf_counter()

    def take(self) -> list[tuple[str, float, float, str]]:
        """All spans so far, of which none are left: (name, start, end, lane).

        Times are seconds of `time.perf_counter()`.
        """
        if not self.pid:
            return []
        spans = [self.spans.popleft() for _ in range(len(self.spans))]
        if not spans or self.synchronize is None:
            return spans
        self.synchronize()
        return [
            (name, self._seconds(start), self._seconds(end), lane)
            for name, start, end, lane in spans
        ]

    def _seconds(self, event: Any) -> float:
        return self.zero_seconds + self.zero.elapsed_time(event) / 1000


recorder = Recorder()


class span:
    """Record how long a piece of work takes, for `run.timeline`.

    Args:
        name: what the work is; "forward", "backward", "optimizer", "data", "communication" get
            their colours.
        lane: "compute", or "communication" for work that runs beside it.

    Use it as `with span("forward"): …`, or, where the end is elsewhere (a hook, a callback), as
    `s = span("all-reduce", lane="communication").start()` … `s.stop()`. Outside `launch` it does
    nothing.
    """

    __slots__ = ("begun", "lane", "name")

    def __init__(self, name: str, *, lane: str = "compute") -> None:
        if not isinstance(name, str):
            raise CourseError(f'span({name!r}): its name is a text, as in span(f"step {{step}}").')
        self.name, self.lane = name, lane
        self.begun: list[Any] = []  # marks: it may begin again before it ends

    def start(self) -> Self:
        """Begin here; returns the span."""
        if recorder.pid == os.getpid():
            self.begun.append(recorder.mark())
        return self

    def stop(self) -> None:
        """End here."""
        if self.begun:
            recorder.spans.append((self.name, self.begun.pop(), recorder.mark(), self.lane))

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()
