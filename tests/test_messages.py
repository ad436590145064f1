"""What a learner reads after a mistake: the value, what it should have been, the next thing to do,
in plain words.
"""

import re
import threading
from collections.abc import Callable

import pytest

from course_utils import CourseError, check, launch, pictures


def train(steps: int = 1) -> int:
    return steps


# The mistake, as the learner writes it -> the value or name that the message shows, and what it
# says to do instead.
MISTAKES: dict[str, tuple[Callable[[], object], str, str]] = {
    "launch(train())": (lambda: launch(train()), "1", "launch(train, 10)"),
    "ranks=0": (lambda: launch(train, ranks=0), "ranks=0", "1 to 64"),
    "device='gpu'": (lambda: launch(train, device="gpu"), "gpu", "cpu"),
    "live=True": (lambda: launch(train, live=True), "live=True", 'LivePlot("loss")'),
    "an argument that cannot be pickled": (
        lambda: launch(train, threading.Lock()),
        "argument 1: cannot pickle '_thread.lock'",
        "inside the",
    ),
    "pictures.collective('all_gather')": (
        lambda: pictures.collective("all_gather"),
        "'all_gather'",
        "all-gather",
    ),
    "check.shared_some": (lambda: check.shared_some, "shared_some", "shared_sum"),
}


@pytest.mark.parametrize(("mistake", "value", "todo"), MISTAKES.values(), ids=MISTAKES)
def test_says_what_it_got_and_what_to_do_in_plain_and_few_words(mistake, value, todo):
    with pytest.raises(CourseError) as caught:
        mistake()
    text = str(caught.value)
    assert value in text
    assert todo in text
    assert 20 <= len(text) <= 400
    blame = re.search(
        r"\b(invalid|illegal|bad|wrong|sorry|please|oops|unfortunately)\b", text, re.IGNORECASE
    )
    assert not blame, f"{blame[0]!r} says neither what nor why: {text}"
