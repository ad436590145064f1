"""What an error says of ranks: pure text, of who is where."""

from course_utils.ranks.run import Run
from course_utils.ranks.wire import Failure
from course_utils.ranks.words import RETURNED, RUNNING, Activity, RanksAt, failed, too_late

WAIT = Activity.wait("in all_reduce")


def test_who_is_late_is_named_with_its_line_and_who_has_returned():
    groups = [RanksAt([0, 2], WAIT, " here:\n  Cell"), RanksAt([3], RUNNING, " here:\n  Cell")]
    error = too_late(Run(4, "cpu", "gloo"), 2.0, groups, {1})
    assert str(error).splitlines()[:-1] == [
        "ranks 0, 2, 3 of 4 had not finished after the time limit of 2 s",
        "ranks 0, 2 wait in all_reduce here:",
        "  Cell",
        "rank 3 is here:",
        "  Cell",
        "rank 1 had returned: a collective needs every rank.",
    ]
    assert (error.cause, error.rank) == ("TimeLimit", None)


def test_who_has_returned_from_an_answer_is_not_late():
    groups = [RanksAt([0], RETURNED, ""), RanksAt([1], WAIT, "")]
    error = too_late(Run(2, "cpu", "gloo"), 2.0, groups, set())
    assert str(error).startswith("rank 1 of 2 had not finished")
    assert (error.rank, error.report.others[0]) == (1, "rank 0 had returned")
    error = too_late(Run(2, "cpu", "gloo"), 2.0, [RanksAt([0, 1], RETURNED, "")], set())
    assert str(error).startswith("ranks 0, 1 of 2"), "the check itself is late"


def test_of_a_rank_that_died_it_is_said_what_the_others_did():
    first = Failure(0.0, "SIGKILL", "was killed (SIGKILL)", [], "")
    error = failed(Run(2, "cpu", "gloo"), 1, first, [RanksAt([0], WAIT, "")])
    assert str(error).splitlines()[:2] == [
        "rank 1 of 2 was killed (SIGKILL)",
        "meanwhile rank 0 waits in all_reduce",
    ]
