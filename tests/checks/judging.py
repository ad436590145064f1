"""How the tests of the checks look at a wrong answer."""

from __future__ import annotations

from collections.abc import Callable

from course_utils import check

OURS = ("course_utils", "pitfall_cases", "time_limit", "error.run")  # no learner knows of these


def judge(name: str, answer: Callable, words: str) -> None:
    """`check.name(answer)` finds it wrong, says `words`, and names nothing of ours."""
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong"
    assert words in str(verdict)
    for ours in OURS:
        assert ours not in str(verdict)
