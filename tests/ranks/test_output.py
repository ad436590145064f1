"""What is shown of what ranks print: lines as they end, and the newest state of unfinished ones."""

import ctypes
import os
import sys
import time

import pytest

from course_utils import RankError, launch
from course_utils.ranks.output import MOST_ROWS, Screen, state
from tests.kernel import posix


@pytest.mark.parametrize(
    ("pieces", "lines", "states"),
    [
        (["a\nb\n"], ["a", "b"], []),
        (["a", "b\nc"], ["ab"], ["c"]),
        (["a\n\n\nb\n"], ["a", "", "", "b"], []),
        (["\r 10 %", "\r 20 %"], [], [" 20 %"]),
        ([" 10 %\r", " 20 %\r"], [], [" 20 %"]),  # print(…, end="\r")
        (["\r 10 %\r100 %\n"], [], ["100 %"]),  # it may still be a bar above another bar
        (["\r100 %\n", "done\n"], ["100 %", "done"], []),
        (["....", "..."], [], ["......."]),
        (["windows\r\nlines\r\n"], ["windows"], ["lines"]),
        # as tqdm draws one bar below another, in three writes
        (["\repoch 1", "\n", "\rstep 1", "\x1b[A", "\n\rstep 2\x1b[A"], [], ["epoch 1", "step 2"]),
        (["\repoch 1\n\rstep 1\x1b[A", "\repoch 2"], [], ["epoch 2", "step 1"]),
        (
            ["\repoch 1\n\rstep 9\x1b", "[A\n\r      \x1b[A\repoch 2\n", "end\n"],
            ["epoch 2", "end"],
            [],
        ),
        (["\x1b[31mred\x1b[0m\nplain\x1b[1m"], ["\x1b[31mred\x1b[0m"], ["plain\x1b[1m"]),
        # as rich draws two bars
        (["\x1b[?25la\nb", "\r\x1b[2K\x1b[1A\x1b[2Kc\nd"], [], ["c", "d"]),
        (["\x1b[?25la\nb\r\x1b[2K\x1b[1A\x1b[2Kc\nd\n\x1b[?25hend\n"], ["c", "d", "end"], []),
        (["\r100 %", "\r      \rdone\n"], [], ["done"]),  # a bar that is taken away
        (["loss 0.5\x1b[K\n"], ["loss 0.5"], []),  # nothing follows the cursor
        (["\repoch 1\x1b[K", "\repoch 2\x1b[0K"], [], ["epoch 2"]),
        (["\repoch 1\r\x1b[Kend\n"], [], ["end"]),
        (["a \x1b]8;id=1;file://x\x1b", "\\link\x1b]8;;\x07 b\n"], ["a link b"], []),
    ],
)
def test_lines_and_states(pieces, lines, states):
    screen = Screen()
    ended = [line for piece in pieces for line in screen.add(piece.encode())]
    assert [state(line) for line in ended] == lines
    assert screen.states() == states


def test_many_bars_one_after_another_do_not_stay_unfinished():
    screen = Screen()
    ended = [line for i in range(20) for line in screen.add(b"\r%d %%\r100 %% of %d\n" % (i, i))]
    assert state(ended[0]) == "100 % of 0"
    assert len(ended) + len(screen.states()) == 20
    assert len(screen.states()) <= MOST_ROWS


def test_a_long_line_is_cut_in_the_middle():
    text = state(b"begin" + b"x" * 20_000_000 + b"end")
    assert len(text) < 1100
    assert text.startswith("begin")
    assert text.endswith("end")


@posix
def test_a_bar_is_shown_in_place_while_ranks_run(kernel):
    answer = kernel.works("""
        def train():
            for step in range(30):
                sys.stderr.write(f"\\rtrain: {step + 1}/30")
                time.sleep(0.05)
                dist.barrier()
        run = launch(train, ranks=2)
    """)
    shown = [data["text/plain"] for data in answer.displays]
    assert any("[rank 0] train: " in text and "[rank 1] train: " in text for text in shown)
    assert shown[-1] == "", "what was in place is gone"
    assert "[rank 0] train: 30/30\n" in answer.text


@posix
def test_what_goes_past_sys_stdout_is_shown():
    def write(fails):
        print("Python's own", file=sys.__stdout__)
        os.write(1, b"the system's\n")
        ctypes.CDLL(None).printf(b"C's\n")
        if fails:
            raise ValueError

    lines = ["Python's own", "the system's", "C's"]
    assert launch(write, False, ranks=1).output[0].splitlines() == lines
    with pytest.raises(RankError) as caught:
        launch(write, True, ranks=1)
    assert caught.value.run.output[0].splitlines() == lines


def test_bars_of_tqdm_also_of_those_for_notebooks():
    tqdm = pytest.importorskip("tqdm")

    def train():
        from tqdm.auto import tqdm as auto
        from tqdm.notebook import tnrange
        from tqdm.notebook import tqdm as notebook

        for bar in (tqdm.tqdm, auto, notebook, lambda steps: tnrange(len(steps))):
            for _ in bar(range(3)):
                time.sleep(0.01)

    [printed] = launch(train, ranks=1).output
    rows = printed.removesuffix("\n").split("\n")
    assert ["100%" in row for row in rows] == [True] * 4
