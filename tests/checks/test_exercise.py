"""The framework of the exercises; the exercises themselves are tested in the other files here."""

import contextlib
import re
import signal
import subprocess
import sys
import time
from fractions import Fraction

import numpy as np
import pytest
import torch

from course_utils import CourseError, launch
from course_utils import checks as check
from course_utils.checks.old import exercise, expect, wrong
from course_utils.checks.old import found as exercises


def share(rows, devices):
    return [len(range(rows)[i::devices]) for i in range(devices)]


def halves(x):
    return [x[:2], x[2:]]


@pytest.fixture
def shares():
    @exercise(share, "What is left over?", "The first rows % devices get one more.")
    def found(answer):
        expect("share(10, 4)", [3, 3, 2, 2], answer(10, 4))
        if sum(answer(7, 2)) != 7:
            wrong("No row may be lost.", expected=7, got=sum(answer(7, 2)))
        return "3, 3, 2, 2."

    yield found
    exercises.pop("share")


@pytest.fixture
def split():
    @exercise(halves)
    def found(answer):
        x = torch.arange(4.0)
        expect("the first half", x[:2], answer(x)[0], tol=1e-6)

    yield found
    exercises.pop("halves")


def test_solution_passes(shares):
    verdict = check.share(share)
    assert verdict
    assert verdict.state == "solved"
    assert str(verdict) == "✓ share: Solved. 3, 3, 2, 2."


def test_wrong_answer_names_expected_and_got(shares):
    verdict = check.share(lambda rows, devices: [rows // devices] * devices)
    assert not verdict
    assert verdict.expected == "[3, 3, 2, 2]"
    assert verdict.got == "[2, 2, 2, 2]"
    assert "expected [3, 3, 2, 2]\n  got      [2, 2, 2, 2]" in str(verdict)


def test_one_more_hint_each_failing_call_and_none_after_solving(shares):
    bad = lambda rows, devices: [rows]  # noqa: E731
    assert shares(bad).hints == shares.hints[:1]
    second = shares(bad)
    assert second.hints == shares.hints
    assert "check.share.solution()" in str(second)
    assert shares(bad).hints == shares.hints
    assert shares(share).hints == ()
    assert shares(bad).hints == shares.hints[:1]


def stub_pass(rows, devices):
    pass


def stub_doc(rows, devices):
    """Rows for each device."""


def stub_return(rows, devices):
    return ...


def stub_raise(rows, devices):
    raise NotImplementedError


def stub_raise_in_words(rows, devices):
    """Rows for each device."""
    raise NotImplementedError("write me")


def half_written(rows, devices):
    each = ...
    return [each] * devices


def not_returned(rows, devices):
    [rows // devices] * devices


def still_dots(rows, devices):
    return [n + 1 for n in ...]


@pytest.mark.parametrize(
    "stub",
    [stub_pass, stub_doc, stub_return, stub_raise, stub_raise_in_words, half_written, not_returned, still_dots],
    ids=lambda f: f.__name__,
)
def test_an_unsolved_stub_reads_not_yet_and_costs_no_hint(shares, stub):
    verdict = shares(stub)
    assert verdict.state == "not yet"
    assert verdict.hints == ()
    assert str(verdict).startswith("○ share: Not yet.")


def test_what_a_written_answer_has_not_implemented_is_shown_with_its_line(shares, split):
    def copies(x):
        return [x.to("meta").to("cpu")]

    verdict = split(copies)
    assert verdict.state == "wrong"
    assert "NotImplementedError: Cannot copy out of meta tensor" in verdict.text
    assert verdict.line.endswith('return [x.to("meta").to("cpu")]')

    def some_cases(rows, devices):
        if rows % devices:
            raise NotImplementedError
        return [rows // devices] * devices

    assert shares(some_cases).state == "wrong"


def test_dots_that_index_a_tensor_are_not_a_stub(split):
    def first(x):
        return [x[..., 1:3], x]

    assert split(first).state == "wrong"


def test_a_call_passed_instead_of_the_function(shares):
    verdict = shares(share(10, 4))
    assert "check.share(share)" in verdict.text
    assert verdict.got == "[3, 3, 2, 2]"
    assert "check.share(share)" in shares(None).text


def test_other_parameters(shares):
    def mine(rows):
        return rows

    verdict = shares(mine)
    assert (verdict.expected, verdict.got) == ("share(rows, devices)", "mine(rows)")


def test_an_exception_is_shown_with_the_learners_line_and_without_ours(shares):
    def mine(rows, devices):
        return rows // (devices - 4)

    verdict = shares(mine)
    assert "ZeroDivisionError: integer division or modulo by zero" in verdict.text.replace(
        "by zero", "or modulo by zero", 0
    )
    assert re.match(r"test_exercise.py, line \d+, in mine\n", verdict.line)
    assert verdict.line.endswith("return rows // (devices - 4)")
    assert "course_utils" not in str(verdict) + verdict._repr_html_()


def test_the_line_is_the_learners_when_a_library_raised(split):
    def mine(x):
        return torch.stack([x, x[1:]])

    assert split(mine).line.endswith("return torch.stack([x, x[1:]])")


def test_a_helper_of_the_learner_is_named():
    def helper(x):
        raise KeyError(x)

    def mine(x):
        return helper(x)

    try:
        verdict = exercise(halves)(lambda answer: answer(1))(mine)
        assert ", in helper\n" in verdict.line
    finally:
        exercises.pop("halves")


def test_a_result_that_cannot_be_used(split):
    verdict = split(lambda x: 3)
    assert verdict.text.startswith("What it returned cannot be used: TypeError")


def test_leaving_python_does_not_end_the_kernel(shares):
    assert "SystemExit" in shares(lambda rows, devices: sys.exit(3)).text


def test_a_course_error_speaks_for_itself(shares):
    def mine(rows, devices):
        raise CourseError("Rank 2 of 4 never arrived.")

    assert shares(mine).text == "Rank 2 of 4 never arrived."


def test_hint_and_solution(shares, capsys):
    assert shares.hint().hints == ("What is left over?",)
    assert shares.hint().hints == shares.hints
    assert shares.hint(1).hints == shares.hints[:1]
    for n in (0, 3, "one", True):
        with pytest.raises(CourseError, match="numbered 1 to 2"):
            shares.hint(n)
    shares.solution()
    assert "return [len(range(rows)" in capsys.readouterr().out


def test_an_unknown_name_lists_near_ones(shares):
    with pytest.raises(CourseError, match=r"no exercise check\.shares\. Did you mean check.share"):
        check.shares  # noqa: B018
    assert not hasattr(check, "_repr_html_")
    assert "share" in dir(check)


def test_html_escapes_and_holds_no_fixed_background(shares):
    html = shares(lambda rows, devices: ["<script>alert(1)</script>"])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "color:inherit" in html
    assert "background:#" not in html


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2), "shape (2, 3) was expected, this is (3, 2)"),
        (torch.zeros(2), torch.full((2,), 0.5), "off by 0.5 at most"),
        (torch.zeros(2), torch.full((2,), float("nan")), "it holds nan"),
        (torch.zeros(2), [0.0, 0.0], "a tensor was expected, this is a list"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), "torch.float32 was expected, this is torch.int64"),
        (torch.zeros(2), torch.zeros(2, device="meta"), "a tensor on cpu was expected, this one is on meta"),
        ([1, 2], [1], "2 of them were expected, these are 1"),
        ([1, 2], 3, "a list was expected, this is an int"),
        ({"a": 1}, {}, "'a' missing"),
        ({"a": 1}, {"a": 1, "b": 2}, "'b' not expected"),
        (1.5, 1.75, "off by 0.25"),
        (1.5, "1.5", "a number was expected, this is a str"),
        (1.0, float("nan"), "not a number"),
        ("sum", "mean", "not what was expected"),
        (True, 1, "a bool was expected, this is an int"),
        ([1, 2], (n for n in (1, 2)), "a list was expected, this is a generator, which can be read once only: wrap it"),
        ([1, 2], torch.tensor([1, 3]), "not what was expected"),
        (2, torch.ones(2), "a number was expected, this is a tensor"),
    ],
)
def test_differences_in_words(expected, got, words):
    with pytest.raises(Exception, match="the thing: ") as error:
        expect("the thing", expected, got)
    assert words in str(error.value)


def test_equal_values_pass():
    for a, b in [
        ((1, 2), [1, 2]),
        (torch.ones(2), torch.ones(2)),
        ({"a": 1.0}, {"a": 1}),
        (2, torch.tensor(2)),
        ("a", "a"),
        ([1, 2], np.array([1, 2])),
        ([1, 2], torch.tensor([1, 2])),
        ([0, 1], range(2)),
        ([[1], [2]], ((1,), np.array([2]))),
        (2, np.int64(2)),
        (0.5, np.float32(0.5)),
        (0.5, Fraction(1, 2)),
        (True, np.bool_(True)),
        (True, torch.tensor(True)),
        (torch.tensor(2.0), 2.0),
        (torch.ones(2), np.ones(2)),
        ({"a": [1.0]}, {"a": (torch.tensor(1.0),)}),
    ]:
        expect("it", a, b)
    expect("it", 1.0, 1.0 + 1e-7, tol=1e-6)
    expect("nothing", torch.zeros(0), torch.zeros(0))


def test_importing_the_checks_imports_no_torch():
    code = "import sys, course_utils.checks; assert not {'torch', 'numpy', 'IPython'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_loop_that_never_ends_is_ended(shares, monkeypatch):
    monkeypatch.setattr("course_utils.checks.old.SECONDS", 0.5)

    def mine(rows, devices):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    verdict = shares(mine)
    assert verdict.state == "wrong"
    assert "still running" in verdict.text
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_the_limit_leaves_a_launch_to_its_own(shares, monkeypatch):
    monkeypatch.setattr("course_utils.checks.old.SECONDS", 1.5)

    def mine(rows, devices):
        launch(time.sleep, 2.0, ranks=1, device="cpu")
        return [3, 3, 2, 2] if rows == 10 else [1]

    assert "still running" not in shares(mine).text


def test_ranks_that_never_finish_are_told_without_advice_on_launch(shares):
    def mine(rows, devices):
        launch(time.sleep, 60, ranks=1, device="cpu", time_limit=1)

    verdict = shares(mine)
    assert verdict.text.startswith("It had not finished after 1 s")
    assert "time_limit" not in verdict.text


def test_errors_of_a_checks_own_launch_speak_of_the_check():
    def mine(x):
        time.sleep(60)

    try:
        at_once = exercise(halves)(lambda answer: launch(answer, 1, ranks=2, device="cpu", time_limit=1))
        verdict = at_once(mine)
        assert verdict.text.startswith("ranks 0, 1 of 2 had not finished after 1 s\n")
        assert "time_limit" not in str(verdict)
    finally:
        exercises.pop("halves")


def test_an_interrupt_is_one_sentence(shares):
    def mine(rows, devices):
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(CourseError, match=r"check\.share was interrupted: the answer was not judged") as caught:
            shares(mine)
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.value.__suppress_context__
