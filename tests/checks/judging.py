"""How the tests of the checks look at an answer."""

from __future__ import annotations

from collections.abc import Callable

from course_utils import check
from course_utils.checks.verdict import Verdict

OURS = ("course_utils", "pitfall_cases", "time_limit", "error.run")  # no learner knows of these


def solved(name: str, answer: Callable) -> None:
    """`check.name(answer)` finds it right."""
    verdict = getattr(check, name)(answer)
    assert verdict, str(verdict)


def judge(name: str, answer: Callable, words: str) -> Verdict:
    """`check.name(answer)` finds it wrong, says `words` in its sentence, and names nothing of ours."""
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong", str(verdict)
    assert words in f"{verdict.text}\nexpected {verdict.expected}\ngot {verdict.got}", str(verdict)
    for ours in OURS:
        assert ours not in str(verdict)
    return verdict
