"""What a learner reads after a mistake: the value, what it should have been, the next thing to do, in plain words."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest

import course_utils
from course_utils import CourseError, LivePlot, check, launch, live, pick, pictures, report
from course_utils.lessons import data
from course_utils.theory import collectives


def train(steps: int = 1) -> int:
    return steps


# The mistake, as the learner writes it -> the value or name that the message shows, and what it says to do instead.
MISTAKES: dict[str, tuple[Callable[[], object], str, str]] = {
    "launch(train())": (lambda: launch(train()), "1", "launch(train, 10)"),
    "launch('train')": (lambda: launch("train"), "'train'", "the function itself"),
    "ranks=0": (lambda: launch(train, ranks=0), "ranks=0", "1 to "),
    "ranks=-1": (lambda: launch(train, ranks=-1), "ranks=-1", "1 to "),
    "ranks='four'": (lambda: launch(train, ranks="four"), "'four'", "ranks=4"),
    "ranks=True": (lambda: launch(train, ranks=True), "True", "ranks=4"),
    "ranks=10_000": (lambda: launch(train, ranks=10_000), "10000", "1 to "),
    "device='cuda:99'": (lambda: launch(train, device="cuda:99"), "cuda:99", ""),
    "device='gpu'": (lambda: launch(train, device="gpu"), "gpu", "cpu"),
    "backend='ncl'": (lambda: launch(train, backend="ncl"), "'ncl'", "gloo"),
    "time_limit=0": (lambda: launch(train, time_limit=0), "time_limit=0", "seconds"),
    "live=True": (lambda: launch(train, live=True), "live=True", 'LivePlot("loss")'),
    "an argument that cannot be pickled": (lambda: launch(train, threading.Lock()), "cannot be pickled", "inside the"),
    "pick('cuda:99')": (lambda: pick("cuda:99"), "cuda:99", "cpu"),
    "pick('gpu')": (lambda: pick("gpu"), "gpu", "cuda"),
    "pick('tpu')": (lambda: pick("tpu"), "tpu", "XLA"),
    "pick(-1)": (lambda: pick(-1), "-1", "cpu"),
    "pick(3.5)": (lambda: pick(3.5), "3.5", '"cuda:0"'),
    "report(loss='low')": (lambda: report(loss="low"), "loss", "number"),
    "report(loss=[1, 2])": (lambda: report(loss=[1, 2]), "loss", "one number"),
    "LivePlot(3)": (lambda: LivePlot(3), "3", 'LivePlot('),
    "LivePlot(total='ten')": (lambda: LivePlot("loss", total="ten"), "'ten'", "whole number"),
    "live(3)": (lambda: list(live(3)), "3", "range"),
    "collectives.steps('all_gather')": (lambda: collectives.steps("all_gather", 4), "'all_gather'", "'all-gather'"),
    "collectives.steps(…, 1)": (lambda: collectives.steps("all-reduce", 1), "1", "from 2"),
    "digits(test=2)": (lambda: data.digits(test=2), "2", "0.2"),
    "player([])": (lambda: pictures.player([], title="t", alt="a"), "no frames", "at least one"),
    "check.pick_divice": (lambda: check.pick_divice, "pick_divice", "pick_device"),
}


def message(mistake: Callable[[], object]) -> str:
    with pytest.raises(CourseError) as caught:
        mistake()
    return str(caught.value)


@pytest.mark.parametrize(("mistake", "value", "todo"), MISTAKES.values(), ids=MISTAKES)
def test_says_what_it_got_and_what_to_do(mistake: Callable[[], object], value: str, todo: str) -> None:
    text = message(mistake)
    assert value in text
    assert todo in text


@pytest.mark.parametrize("mistake", [mistake for mistake, *_ in MISTAKES.values()], ids=MISTAKES)
def test_is_plain_and_short(mistake: Callable[[], object]) -> None:
    text = message(mistake)
    assert 20 <= len(text) <= 400
    blame = re.search(r"\b(invalid|illegal|bad|wrong|sorry|please|oops|unfortunately)\b", text, re.IGNORECASE)
    assert not blame, f"{blame[0]!r} says neither what nor why: {text}"
    assert "object at 0x" not in text, f"an address helps nobody: {text}"


def test_every_error_is_a_course_error() -> None:
    errors = [getattr(course_utils, name) for name in course_utils.__all__ if name.endswith("Error")]
    assert len(errors) == 5
    assert all(issubclass(error, CourseError) for error in errors)


def test_notebook_shows_the_message_without_our_frames() -> None:
    shown = CourseError("Say what, and what to do.")._render_traceback_()
    assert any("CourseError" in line and "Say what, and what to do." in line for line in shown)
    assert not any("course_utils/" in line for line in shown)
