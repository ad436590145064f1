"""Spans on a device, whose times come from its events."""

import multiprocessing as mp

from course_utils import span
from course_utils.ranks import rank, spans
from course_utils.ranks.wire import Metrics, Session, Spans

SPAN = ("forward", 0.0, 1.0, "compute")


def test_they_are_measured_before_an_exit_handler_ends_the_device(monkeypatch):
    """TorchTPU's does, and whoever synchronizes afterwards waits for ever."""
    order = []
    monkeypatch.setattr(rank.recorder, "take", lambda: order.append("spans") or [SPAN])
    monkeypatch.setattr(rank.recorder, "synchronize", lambda: None)  # as on an accelerator
    here, there = mp.Pipe()
    session = Session(0, there, 0.0)
    rank.close(session, (Metrics([]), None), lambda: order.append("end"))
    assert order == ["spans", "end"]
    assert [type(here.recv()[1]) for _ in range(2)] == [Spans, Metrics]


def test_none_is_lost_that_ends_while_others_are_sent(monkeypatch):
    taken = []
    recorder = spans.Recorder()
    recorder.start_recording("cpu")
    recorder.mark = lambda: taken.extend(recorder.take()) or 1.0
    monkeypatch.setattr(spans, "recorder", recorder)
    for _ in range(2):
        span("forward").start().stop()
    assert len(taken + recorder.take()) == 2
