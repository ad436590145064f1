"""The framework of the exercises: what is compared, what is said, and what an answer may do without
harm.
"""

import builtins
import contextlib
import os
import re
import sys
import threading
import time
import types
from dataclasses import replace
from decimal import Decimal  # noqa: F401

import numpy as np  # noqa: F401
import pytest
import torch
import torch.distributed as dist

from course_utils import launch
from course_utils.checks import all_exercises
from course_utils.checks.compare import AtMost, difference  # noqa: F401
from course_utils.checks.exercise import SETTINGS, Exercise
from course_utils.ranks.pickler import names_in
from tests import tables
from tests.files import ROOT, cells


def share(rows, devices):
    return [len(range(rows)[i::devices]) for i in range(devices)]


def rounded_down(rows, devices):
    return [rows // devices] * devices


def total(tensor):
    dist.all_reduce(tensor)


def probe_of_shares(answer):
    for rows, devices in ((10, 5), (10, 4), (7, 2)):
        yield f"share({rows}, {devices})", answer(rows, devices)
    yield "", "No row is lost."


def probe_of_totals(answer):
    for length in (3, 2_000):
        tensor = torch.arange(length) + 1.0 + dist.get_rank()
        answer(tensor)
        yield f"the sum of {length} numbers", tensor


LOST = {"The rows that are left over are lost": rounded_down}
shares = Exercise(share, probe_of_shares, mistakes=LOST)
totals = Exercise(total, probe_of_totals, ranks=(2,))


def test_the_solution_is_solved_and_a_mistake_gets_its_sentence():
    verdict = shares(share)
    assert verdict
    assert str(verdict) == "✓ share: Solved. No row is lost."
    verdict = shares(rounded_down)
    assert not verdict
    assert verdict.text == "share(10, 4): The rows that are left over are lost."
    assert str(verdict).endswith("expected [3, 3, 2, 2]\n  got      [2, 2, 2, 2]")
    assert "left over" not in shares(lambda rows, devices: [rows] * devices).text


def test_on_ranks_the_first_difference_is_named_with_its_rank():
    assert totals(total)

    def only_on_rank_0(tensor):
        dist.reduce(tensor, 0)

    verdict = totals(only_on_rank_0)
    assert verdict.text.startswith("2 ranks, rank 1: the sum of 3 numbers: ")
    assert verdict.expected == "[3, 5, 7]"

    def never(tensor):
        while dist.get_rank():
            time.sleep(0.01)

    verdict = replace(totals, seconds=2.0)(never)
    says = "the sum of 3 numbers: ranks? (0, )?1 of 2 had not finished after 2 s"
    assert re.search(says, verdict.text)
    assert "time_limit" not in str(verdict)
    assert "waits for" not in verdict.text  # who had returned waits for nobody


def stub(rows, devices):
    """Rows for each device."""


def stub_of_dots(rows, devices):
    return ...


def half_written(rows, devices):
    each = ...
    return [each] * devices


def not_returned(rows, devices):
    [rows // devices] * devices


@pytest.mark.parametrize(
    "answer", [stub, stub_of_dots, half_written, not_returned], ids=lambda f: f.__name__
)
def test_what_is_not_written_yet_is_not_wrong(answer):
    assert str(shares(answer)).startswith("○ share: Not yet.")


def test_dots_that_index_a_tensor_are_no_gap():
    assert shares(lambda rows, devices: torch.ones(devices)[..., 1:]).state == "wrong"


def test_how_it_is_called():
    assert "check.share(share)" in shares(share(10, 4)).text
    said = shares(lambda rows: rows).text
    assert "It is called as `share(rows, devices)`, and yours cannot be" in said
    assert shares(lambda rows, devices, last=0: share(rows, devices))


def test_an_exception_is_shown_with_the_learners_line_and_without_ours():
    def helper(devices):
        return torch.ones(devices) @ torch.ones(4)

    def mine(rows, devices):
        return helper(devices)

    verdict = shares(mine)
    assert verdict.text.startswith("share(10, 5): It raised RuntimeError: ")
    assert re.search(r"line \d+, in mine\s+return helper\(devices\)", verdict.text)
    assert "return torch.ones(devices) @ torch.ones(4)" in verdict.text
    assert "course_utils" not in str(verdict) + verdict._repr_html_()


def test_a_size_that_no_memory_holds_is_told_so():
    verdict = shares(lambda rows, devices: torch.zeros(1 << 60))
    assert "It asked for more memory than there is: a size" in verdict.text


def test_ranks_that_a_probe_launches_itself_are_named():
    def probe(answer):
        yield "on two ranks", launch(answer, ranks=2, device="cpu", show=False).results

    def wrong():
        if dist.get_rank():
            raise ValueError("no share")

    verdict = Exercise(lambda: None, probe, here=True)(wrong)
    assert verdict.text.startswith("rank 1 of 2 raised ValueError: no share")


def test_an_answer_cannot_harm_the_kernel():
    def leaves(rows, devices):
        sys.exit(3)

    def leaves_well(rows, devices):
        sys.exit(0)

    def changes(rows, devices):
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        torch.set_num_threads(1 + torch.get_num_threads())
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(0)
        os.environ["CHANGED"] = "1"
        os.chdir("/")
        return share(rows, devices)

    def state():
        folder, drawn = os.getcwd(), torch.random.get_rng_state().tolist()
        return [tell() for tell, _ in SETTINGS.values()], folder, drawn, "CHANGED" in os.environ

    def never_ends(rows, devices):
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(0.01)

    def launches(rows, devices):
        return launch(share, rows, devices, ranks=1).results[0]

    lock = threading.Lock()

    def cannot_be_sent(rows, devices):
        with lock:
            return share(rows, devices)

    assert shares(leaves).state == "wrong"
    assert shares(leaves_well).text == "It called sys.exit() before it returned."
    assert shares(cannot_be_sent).text.startswith("It uses what no other process can get")
    assert shares(changes)
    before = state()
    assert replace(shares, here=True)(changes)
    assert state() == before
    assert "launch was called inside a rank" in shares(launches).text
    assert "It had not finished after 2 s" in replace(shares, seconds=2.0)(never_ends).text


@pytest.mark.parametrize("name", all_exercises())
def test_a_solution_runs_where_it_is_printed(name, capsys, monkeypatch):
    """With the imports that the notebook lacks, and what its cells define."""
    exercise = all_exercises()[name]
    (notebook,) = ROOT.glob(f"notebooks/{exercise.published.__module__.rpartition('nb')[2]}.ipynb")
    text = "\n".join(cell.source for cell in cells(notebook, "code"))
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    exercise.solution()
    defined = vars(builtins) | dict.fromkeys(re.findall(r"^def (\w+)", text, re.MULTILINE), ...)
    exec(capsys.readouterr().out, defined)
    published = exercise.published.__code__
    assert names_in(published) & {*exercise.published.__globals__} <= {*defined}


def test_what_the_notebook_has_is_not_imported_again(capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "torch", torch, raising=False)
    all_exercises()["balance"].solution()
    assert capsys.readouterr().out.startswith("from itertools import combinations, pairwise\n")
    all_exercises()["read_once"].solution()
    assert capsys.readouterr().out.startswith("def read_once")


def test_html_escapes_and_holds_no_fixed_background():
    html = shares(lambda rows, devices: ["<script>alert(1)</script>"])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "color:inherit" in html
    assert "background:#" not in html


DIFFERENT = """
expected                 got                                  what is said
torch.zeros(2, 3)        torch.zeros(3, 2)                    another shape
torch.zeros(2)           torch.full((2,), 0.5)                off by 0.5 at most
torch.zeros(2)           torch.full((2,), float("nan"))       nan where 0 was expected
torch.zeros(2)           [0.0, 0.0]                           a tensor was expected, this is a list
torch.zeros(2)           torch.zeros(2, dtype=torch.int64)    another dtype
torch.zeros(2)           torch.zeros(2, requires_grad=True)   another requires_grad
torch.zeros(2)           torch.zeros(2, device="meta")        another device
[1, 2]                   [1]                                  2 of them expected, these are 1
[1, 2]                   3                                    a list was expected, this is an int
{"a": 1}                 {}                                   other names than expected
1.5                      1.75                                 off by 0.25
1.5                      "1.5"                                a number was expected, this is a text
1.0                      float("-inf")                        -inf where 1 was expected
"a network"              None                                 this is nothing (None)
"sum"                    "mean"                               not what was expected
300 * "a" + "b"          300 * "a" + "c"                      not what was expected
Decimal("1.5")           Decimal("1.75")                      off by 0.25
True                     1                                    a bool was expected, this is an int
[1, 2]                   torch.tensor([1, 3])                 number 1
2                        torch.ones(2)                        number was expected, this is a tensor
AtMost(3, 3)             AtMost(4, 3)                         more than is allowed
"""
EQUAL = """
expected                        got
[[1], [2]]                      ((1,), np.array([2]))
True                            torch.tensor(True)
torch.tensor(2.0)               2.0
torch.ones(2)                   np.ones(2, dtype=np.float32)
{"a": [1.0]}                    {"a": (torch.tensor(1.0),)}
AtMost(3, 3)                    AtMost(2, 3)
1.0                             1.0 + 1e-7
torch.zeros(0)                  torch.zeros(0)
torch.tensor([-np.inf, np.nan])  torch.tensor([-np.inf, np.nan])
"""


@pytest.mark.parametrize(("expected", "got", "says"), tables.rows(DIFFERENT))
def test_differences_in_words(expected, got, says):
    found = difference(eval(expected), eval(got), 1e-5)
    assert says in found.words
    assert found.expected != found.got


@pytest.mark.parametrize(("expected", "got"), tables.rows(EQUAL))
def test_equal_values(expected, got):
    assert difference(eval(expected), eval(got), 1e-5) is None


def test_an_answer_that_is_looked_at_here_is_told_alike():
    here = replace(shares, published=rounded_down, here=True)
    lock = threading.Lock()
    assert here(rounded_down)
    assert here(lambda rows, devices: lock and rounded_down(rows, devices))  # nothing is sent
    verdict = here(lambda rows, devices: [1 // 0])
    assert verdict.text.startswith("share(10, 5): It raised ZeroDivisionError")
