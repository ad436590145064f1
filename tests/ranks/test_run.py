"""What a run answers to who takes it for a list, or asks for what was not reported."""

import pytest

from course_utils import CourseError
from course_utils.ranks import Run

RUN = Run(2, "cpu", "gloo", results=[1, 2])
RUN.metrics += [{"rank": 1, "time": 0.1, "step": 0, "loss": 0.5}]


@pytest.mark.parametrize("use", [lambda: RUN[0], lambda: [*RUN]])
def test_the_results_are_in_results(use):
    with pytest.raises(TypeError, match=r"is its \.results$"):
        use()


def test_a_column_that_nobody_reported_is_no_empty_one():
    assert RUN.column("loss", rank=1) == [0.5]
    assert RUN.column("loss") == []
    with pytest.raises(
        CourseError, match="no rank reported 'typo'; there is: loss, rank, step, ti"
    ):
        RUN.column("typo")
    with pytest.raises(CourseError, match="there is: nothing"):
        Run(2, "cpu", "gloo").column("loss")
    with pytest.raises(CourseError, match="rank=2: there are 2 ranks, counted from 0"):
        RUN.column("loss", rank=2)
