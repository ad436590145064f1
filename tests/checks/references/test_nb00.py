"""The published solution of notebook 00 against a formula."""

from course_utils import launch
from course_utils.checks.nb00_start_here import shared_sum


def test_shared_sum_is_the_formula():
    for n in (0, 3, 1_000):
        assert launch(shared_sum, n, ranks=3).results == [n * (n - 1) // 2] * 3
