"""What a run answers to who takes it for a list, or asks for what is not there."""

import copy

import pytest

from course_utils import CourseError
from course_utils.ranks import Run

RUN = Run(2, "cpu", "gloo", results=[1, 2])
RUN.metrics += [{"rank": 1, "time": 0.1, "step": 0, "loss": 0.5}]


@pytest.mark.parametrize(
    "use", [lambda: RUN[0], lambda: len(RUN), lambda: [*RUN], lambda: max(RUN), lambda: RUN.result]
)
def test_the_results_are_in_results(use):
    with pytest.raises((TypeError, AttributeError), match=r"is its \.results$"):
        use()


def test_it_is_true_and_can_be_copied():
    assert RUN
    assert copy.deepcopy(RUN).results == [1, 2]
    assert not hasattr(RUN, "_repr_html_")


def test_a_column_that_nobody_reported_is_no_empty_one():
    assert RUN.column("loss", rank=1) == [0.5]
    assert RUN.column("loss") == []
    with pytest.raises(
        CourseError, match="no rank reported 'typo'; there is: loss, rank, step, ti"
    ):
        RUN.column("typo")
    with pytest.raises(CourseError, match="there is: nothing"):
        Run(2, "cpu", "gloo").column("loss")
