"""What is shown of what ranks print: lines as they end, and the newest state of unfinished ones."""

import ctypes
import os
import sys
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils import RankError, launch
from course_utils.ranks import output as output_module
from course_utils.ranks.output import LAST_LINES, MOST_LINES, Output, cut
from tests.kernel import posix

SHOWN = {  # what is printed, and the lines that are shown of it
    "a\n\n\nb\nc": "a\n\n\nb\nc\n",
    "windows\r\nlines\r\r\n": "windows\nlines\n",
    "\r 10 %\r 20 %": " 20 %\n",
    " 10 %\r 20 %\r": " 20 %\n",  # print(…, end="\r")
    "\r 10 %\r100 %\ndone\n": "100 %\ndone\n",
    "\r100 %\r      \rdone\n": "done\n",  # tqdm's, that leaves no line
    "a\n\r100 %\r     \r": "a\n",
    "1/2\b\b\b\r2/2\b\b\b\r2/2": "2/2\n",  # keras
    "loss 0.5\x1b[K\n": "loss 0.5\n",
    "\repoch 1\x1b[K\r\x1b[2Kepoch 2\x1b[0K": "epoch 2\n",
    "\x1b[?25l10 %\r\x1b[2K20 %\n\x1b[?25hend\n": "20 %\nend\n",  # rich
    "\x1b[1;31mred\x1b[0m\nplain\x1b[1m": "\x1b[1;31mred\x1b[0m\nplain\x1b[1m\n",
    "a \x1b]8;id=1;file://x\x1b\\link\x1b]8;;\x07 b\n": "a link b\n",
}
PARTS = (b"a", "━".encode(), b" ", b"\n", b"\r", b"\r\n", b"\x1b[2K", b"\x1b[31m", b"\b")


@pytest.mark.parametrize("printed", SHOWN)
def test_a_line_ends_and_a_row_shows_what_follows_its_last_return(printed):
    output = Output("program", show=True)
    output.add(0, printed.encode())
    now = [*output.printed[0].decode().splitlines(), *output.unfinished()]
    assert now == SHOWN[printed].splitlines()
    assert output.texts(1) == [SHOWN[printed]]


@given(st.lists(st.sampled_from(PARTS)), st.sets(st.integers(0, 40)))
def test_wherever_the_bytes_are_cut_the_lines_are_the_same(parts, cuts):
    data = b"".join(parts)
    whole, pieces = Output("rank", show=False), Output("rank", show=False)
    whole.add(0, data)
    for begin, end in pairwise([0, *sorted(cuts), len(data)]):
        pieces.add(0, data[begin:end])
    assert pieces.text(0) == whole.text(0)
    assert pieces.texts(1) == whole.texts(1)


def test_a_bar_that_runs_for_days_takes_the_room_of_one_state():
    output = Output("rank", show=False)
    for step in range(1000):
        output.add(0, b"\r%3d" % step)
    assert len(output.rows[0]) == 3


LEFT_OUT = """
[Gloo] Rank 0 is connected to 1 peer ranks.
[rank1]:[W1124 10:9 a.cpp:329] Warning: Time stats are currently only collected for CPU and CUDA
[rank0]:[W1124 10:44:50.57 TensorBody.h:499] Warning: The .grad attribute of a Tensor that is not a
2026-11-24 10:44:50.5769: E external/xla/service/rendezvous.cc:38] This thread
E1124 10:44:50.576919  123 rendezvous.cc:38] This thread has been waiting
x.py:3: UserWarning: <TorchTpu/Performance/> a copy
"""
KEPT = """
epoch 1: rendezvous.cc:38] is fine
The .grad attribute is None
see [Gloo] Rank 0 is connected
[rank0]:[W1124 10:44:50.576919260 logger.cpp:329] Warning: something else
"""


def test_what_libraries_say_of_themselves_is_left_out_and_no_more(capsys):
    output = Output("program", show=True)
    output.add(0, (LEFT_OUT + KEPT).encode())
    assert output.texts(1) == [f"\n{KEPT}"] == [capsys.readouterr().out]


def test_the_last_lines_of_each_rank_are_shown_after_very_many(capsys):
    output = Output("rank", show=True)
    for i in range(3 * MOST_LINES):
        output.add(i % 2, b"%d\n" % i)
    output.add(1, b"at the end")
    whole = output.texts(2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == MOST_LINES + 1 + 2 * LAST_LINES
    assert lines[-1] == "[rank 1] at the end"
    assert lines[-LAST_LINES - 1] == f"[rank 0] {3 * MOST_LINES - 2}"
    assert [text.count("\n") for text in whole] == [3 * MOST_LINES // 2, 3 * MOST_LINES // 2 + 1]


@pytest.mark.parametrize(("line", "kept"), [(b"x" * 99 + b"\n", 1000), (b"x" * 100, 1001)])
def test_what_is_not_kept_is_told(line, kept, monkeypatch):
    monkeypatch.setattr(output_module, "MOST_BYTES", 1000)
    output = Output("rank", show=False)
    for _ in range(20):
        output.add(0, line)
    [text] = output.texts(1)
    assert text[kept:] == "… 1 kB more were printed, and are not kept\n"


def test_a_long_line_is_cut_in_the_middle():
    text = cut(b"begin" + b"x" * 20_000_000 + b"end")
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


def test_bars_of_tqdm_below_one_another_take_turns():
    tqdm = pytest.importorskip("tqdm").tqdm

    def train():
        for epoch in tqdm(range(2), desc="epochs", mininterval=0):
            for _ in tqdm(range(9), desc="steps", leave=False, mininterval=0):
                pass
            print("epoch", epoch)
        for _ in tqdm(range(9), desc="at 3", position=3, mininterval=0):
            tqdm.write("beside")

    [printed] = launch(train, ranks=1).output
    rows = [row.partition(":")[0] for row in printed.splitlines()]
    assert rows == ["epoch 0", "epoch 1", "epochs", *["beside"] * 9, "at 3"]
