"""What is said of ranks that wait: pure text, of stacks and times."""

import pytest

from course_utils.errors import PACKAGE
from course_utils.ranks import program, whereabouts
from course_utils.ranks.run import Run
from course_utils.ranks.whereabouts import Whereabouts, grouped
from tests.tables import rows

C10D = "/site-packages/torch/distributed/distributed_c10d.py"
CELL = ("/tmp/ipykernel_1/2.py", 4, "train")
WAITS = [
    (C10D, 9, "all_reduce"),
    ("/site-packages/torch/distributed/c10d_logger.py", 8, "wrapper"),
    CELL,
]
MEETING = ("/site-packages/torch/distributed/rendezvous.py", 2, "_create_c10d_store")
JOINS = [MEETING, (C10D, 3, "init_process_group")]
BACKWARD = ("/site-packages/torch/autograd/graph.py", 2, "_engine_run_backward")
MEETS = (f"{PACKAGE}/checks/exercise.py", 2, "_anywhere")
END = (program.__file__, 1, "end")
STEP = ("/site-packages/torch_xla/core/xla_model.py", 2, "mark_step")


SAID = """
frames                                                  what is said
[]                                                      rank 0 does not answer
[CELL]                                                  rank 0 is
WAITS                                                   rank 0 waits in all_reduce
[*JOINS, CELL]                                          rank 0 waits in init_process_group
[*JOINS, (f"{PACKAGE}/ranks/rank.py", 2, "prepare")]    rank 0 is starting
[BACKWARD, CELL]                                        rank 0 waits in backward
[*WAITS[:2], MEETS]                                     rank 0 had returned
[STEP, CELL]                                            rank 0 waits in mark_step
[CELL, END]                                             rank 0 has returned, and waits for its
"""


@pytest.mark.parametrize(("frames", "words"), rows(SAID))
def test_activity(frames, words):
    [group] = grouped({0: eval(frames)})
    assert group.sentence("rank").startswith(words)


def test_of_a_file_that_a_cell_calls_both_lines_are_said(tmp_path):
    [group] = grouped({0: [(str(tmp_path / "mine.py"), 3, "step"), CELL]})
    assert group.place.splitlines()[1:] == [
        "  Cell, line 4, in train",
        "  mine.py, line 3, in step",
    ]


def test_a_rank_that_no_longer_says_where_it_is(monkeypatch):
    there = Whereabouts(Run(2, "cpu", "gloo"))
    for now in (0.0, 9.0):
        monkeypatch.setattr(whereabouts.time, "monotonic", lambda now=now: now)
        there.note(0, [CELL], now)
        if not now:
            there.note(1, WAITS, now)
    assert [group.sentence("rank") for group in there.groups([0, 1])] == [
        "rank 0 is here:\n  Cell, line 4, in train",
        "rank 1 does not answer, and was last here:\n  Cell, line 4, in train",
    ]


def test_ranks_that_wait_are_said_after_a_while(monkeypatch):
    there = Whereabouts(Run(3, "cpu", "gloo"))
    there.last_message = 0.0
    for now in (0.0, 5.0, 12.0):
        monkeypatch.setattr(whereabouts.time, "monotonic", lambda now=now: now)
        there.note(0, WAITS, 0.1 * now)
        there.note(1, [CELL], 0.9 * now)
        there.note(2, WAITS, 0.0)
    assert there.notice(9.0, {2}, 20.0) == "", "too early"
    assert there.notice(12.0, {2}, 20.0).splitlines() == [
        "Nothing heard for 12 s. The time limit ends this in 8 s.",
        "rank 0 waits in all_reduce here:",
        "  Cell, line 4, in train",
        "rank 1 is here:",
        "  Cell, line 4, in train",
        "rank 2 had returned: a collective needs every rank.",
    ]
    assert there.notice(12.0, {0, 2}, 20.0) == "", "only who waits"
    for now in (0.0, 12.0):
        monkeypatch.setattr(whereabouts.time, "monotonic", lambda now=now: now)
        there.note(0, [BACKWARD, CELL], 0.9 * now)
    assert there.notice(12.0, {2}, 20.0) == "", "a long backward computes"
    there.last_message = 11.0
    assert there.notice(12.0, {2}, 20.0) == "", "something was heard"
