"""What `report` takes, what it refuses in words, and that nothing of it is lost."""

import multiprocessing as mp
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from course_utils import CourseError, launch, report
from course_utils.ranks import wire
from course_utils.ranks.wire import Session
from tests.tables import like, rows


@pytest.fixture
def session(monkeypatch):
    session = Session(0, mp.Pipe()[0], 0.0)
    monkeypatch.setattr(wire, "_process", session)
    return session


WRONG = """
call                         what is said
report({"loss": 1.0})        report got {'loss': 1.0} without a name.
report(torch.tensor(2.0))    report got tensor(2.) without a name.
report(time=3.0)             report got time=, which each record has by itself.
report(rank=0)               report got rank=, which each record has by itself.
report(phase="train")        phase='train' is no number: give one, as in phase=0.5,
report(loss="0.5")           loss='0.5' is no number
report(loss=None)            is no number: give one, as in loss=0.5, or a tensor of one
report(loss=[1, 2])          is no number
report(loss={})              is no number
report(loss=np.ones(2))      is no number
report(loss=torch.ones(2))   is no number
report(loss=1j)              is no number
report(loss=torch.tensor(1j))  is no number
report(0.5, loss=1.0)        report got 0.5 as a step. A step is one whole
report("x", loss=1.0)        report got 'x' as a step. A step is one whole
"""


@pytest.mark.parametrize("where", ["a rank", "the notebook"])
@pytest.mark.parametrize(("call", "says"), rows(WRONG))
def test_what_it_cannot_take_is_said(call, says, where, request):
    if where == "a rank":
        session = request.getfixturevalue("session")
    with pytest.raises(CourseError, match=like(says)):
        eval(call)
    assert where != "a rank" or not session.records


def test_a_failed_device_keeps_its_own_words():
    with pytest.raises(RuntimeError, match="meta"):
        report(loss=torch.ones(1, device="meta"))


@pytest.mark.parametrize("step", [None, 3, np.int64(3), torch.tensor(3)])
def test_a_step_is_any_whole_number(step, session):
    report(step, loss=1.0)
    report(step=step, loss=1.0)
    steps = [record["step"] for record in session.records]
    assert steps == ([0, 1] if step is None else [3, 3])


def test_a_value_is_a_number_of_any_library(session):
    ones = [1, True, np.float32(1), np.ones(1), Decimal(1), Fraction(1), torch.ones(1, 1)]
    with warnings.catch_warnings(action="error"):
        report(
            **{f"{i}": one for i, one in enumerate(ones)}, loss=torch.ones((), requires_grad=True)
        )
    [record] = session.records
    assert {type(value) for value in record.values()} == {int, float}
    assert [*record.values()][3:] == [1.0] * 8


class Interrupted(Session):
    """Of two threads: whenever one has looked something up, the other one reports and sends."""

    one_at_a_time = False

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        if not Interrupted.one_at_a_time:
            Interrupted.one_at_a_time = True
            report(other=1)
            self.flush()
            Interrupted.one_at_a_time = False
        return value


def test_what_two_threads_report_is_neither_lost_nor_counted_twice(monkeypatch):
    here, there = mp.Pipe()
    session = Interrupted(0, there, 0.0)
    monkeypatch.setattr(wire, "_process", session)
    for _ in range(3):
        report(own=1)
    monkeypatch.setattr(Interrupted, "one_at_a_time", True)
    session.flush()
    records = []
    while here.poll():
        records += here.recv()[1].records
    assert len([record for record in records if "own" in record]) == 3
    assert sorted(record["step"] for record in records) == [*range(len(records))]


def test_it_does_nothing_in_a_child_of_a_rank(tmp_path, monkeypatch):
    def load():
        child = mp.get_context("fork").Process(target=report, kwargs={"loss": 1.0})
        with warnings.catch_warnings(action="ignore"):  # Python 3.12's, of a fork with threads
            child.start()
        child.join()
        return child.exitcode

    monkeypatch.chdir(tmp_path)
    run = launch(load, ranks=1, device="cpu")
    assert run.results == [0]
    assert (run.metrics, run.output, [*tmp_path.iterdir()]) == ([], [""], [])
