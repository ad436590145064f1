"""`span()`: named stretches of a rank's time, on one clock for all ranks, measured on the device that did the work."""

from __future__ import annotations

import os
import time
from typing import Any, Self

MOST_SPANS = 200_000


class SpanClock:
    """A processor's clock: a mark is the time itself, in seconds of `time.perf_counter()`."""

    def mark(self) -> Any:
        return time.perf_counter()

    def settle(self) -> None:
        """Wait until every mark has happened."""

    def seconds(self, mark: Any) -> float:
        return mark

    @staticmethod
    def on(device: str) -> SpanClock:
        """The clock of a device kind: "cpu", "cuda", "xpu"."""
        return SpanClock() if device == "cpu" else EventClock(device)


class EventClock(SpanClock):
    """An accelerator's clock: a mark is a device event, because the call returns before the work is done."""

    def __init__(self, device: str) -> None:
        import torch

        self.event = lambda: torch.Event(device, enable_timing=True)
        self.synchronize = torch.accelerator.synchronize
        self.synchronize()
        self.zero = self.mark()
        self.synchronize()
        self.zero_seconds = time.perf_counter()

    def mark(self) -> Any:
        event = self.event()
        event.record()
        return event

    def settle(self) -> None:
        self.synchronize()

    def seconds(self, mark: Any) -> float:
        return self.zero_seconds + self.zero.elapsed_time(mark) / 1000


class Recorder:
    """The spans of this process. Off until `begin`, so that `span` is harmless outside a rank."""

    def __init__(self) -> None:
        self.clock: SpanClock | None = None
        self.pid = 0
        self.spans: list[tuple[str, Any, Any, str]] = []

    def begin(self, clock: SpanClock) -> None:
        self.clock, self.pid, self.spans = clock, os.getpid(), []

    def take(self) -> list[tuple[str, float, float, str]]:
        """All spans so far as (name, start, end, lane), seconds; the recorder is empty afterwards."""
        if self.clock is None:
            return []
        self.clock.settle()
        spans, self.spans = self.spans, []
        return [(name, self.clock.seconds(a), self.clock.seconds(b), lane) for name, a, b, lane in spans]


recorder = Recorder()


class span:
    """Record how long a piece of work takes, for `run.timeline`.

    Args:
        name: what the work is; "forward", "backward", "optimizer", "data", "communication" get their colours.
        lane: "compute", or "communication" for work that runs beside it.

    Use it as `with span("forward"): …`, or where the end is elsewhere (a hook, a callback) as
    `s = span("all-reduce", lane="communication").start()` … `s.stop()`. Outside `launch` it does nothing.
    """

    __slots__ = ("begun", "lane", "name")

    def __init__(self, name: str, *, lane: str = "compute") -> None:
        self.name, self.lane, self.begun = name, lane, None

    def start(self) -> Self:
        """Begin here; returns the span."""
        if recorder.clock is not None and recorder.pid == os.getpid():
            self.begun = recorder.clock.mark()
        return self

    def stop(self) -> None:
        """End here."""
        if self.begun is not None and len(recorder.spans) < MOST_SPANS:
            recorder.spans.append((self.name, self.begun, recorder.clock.mark(), self.lane))
        self.begun = None

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()
