"""Spans on a device, whose times come from its events."""

import multiprocessing as mp

import pytest

from course_utils import CourseError, span
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


def test_one_that_begins_again_inside_itself_is_two(monkeypatch):
    recorder = spans.Recorder()
    recorder.start_recording("cpu")
    recorder.mark = iter([0.0, 1.0, 2.0, 3.0]).__next__
    monkeypatch.setattr(spans, "recorder", recorder)
    step = span("step")
    with step, step:
        pass
    assert [(start, end) for _, start, end, _ in recorder.take()] == [(1.0, 2.0), (0.0, 3.0)]


def test_one_whose_name_is_no_text_is_refused():
    with pytest.raises(CourseError, match=r"span\(3\): its name is a text"):
        span(3)
