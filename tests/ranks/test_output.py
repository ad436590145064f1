"""What is shown of what ranks print: lines as they end, and the newest state of unfinished ones."""

import ctypes
import os
import sys
import time

import pytest

from course_utils import RankError, launch
from course_utils.ranks import output as output_module
from course_utils.ranks.output import LAST_LINES, MOST_LINES, MOST_ROWS, Output, Screen, state
from tests.files import ROOT
from tests.kernel import posix
from tests.python import python


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


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("[Gloo] Rank 0 is connected to 1 peer ranks.", False),
        (
            "[rank1]:[W1124 10:59:34.452574727 logger.cpp:329] Warning: Time stats are currently "
            "only collected for CPU and CUDA devices.",
            False,
        ),
        (
            "[rank0]:[W1124 10:44:50.576919260 TensorBody.h:499] Warning: The .grad attribute of "
            "a Tensor that is not a leaf Tensor is being accessed.",
            False,
        ),
        ("2026-11-24 10:44:50.5769: E external/xla/service/rendezvous.cc:38] This thread", False),
        ("E1124 10:44:50.576919  123 rendezvous.cc:38] This thread has been waiting", False),
        ("x.py:3: UserWarning: <TorchTpu/Performance/> a copy", False),
        ("epoch 1: rendezvous.cc:38] is fine", True),
        ("The .grad attribute is None", True),
        ("see [Gloo] Rank 0 is connected", True),
        ("[rank0]:[W1124 10:44:50.576919260 logger.cpp:329] Warning: something else", True),
    ],
)
def test_what_libraries_say_of_themselves_is_left_out_and_no_more(line, is_shown, capsys):
    output = Output("rank", show=True)
    output.add(0, f"a\n{line}\nb\n".encode())
    kept = f"a\n{line}\nb\n" if is_shown else "a\nb\n"
    assert output.texts(1) == [kept]
    assert (line in capsys.readouterr().out) == is_shown


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


def test_what_is_not_kept_is_told(monkeypatch):
    monkeypatch.setattr(output_module, "MOST_BYTES", 1000)
    output = Output("rank", show=False)
    for _ in range(20):
        output.add(0, b"x" * 99 + b"\n")
    [text] = output.texts(1)
    assert text.count("\n") == 11
    assert text.endswith("\n… 1 kB more were printed, and are not kept\n")


def test_what_a_very_long_line_loses_is_told(monkeypatch):
    monkeypatch.setattr(output_module, "MOST_BYTES", 1000)
    output = Output("rank", show=False)
    for _ in range(30):
        output.add(0, b"x" * 100)
    assert output.texts(1)[0].endswith("\n… 2 kB more were printed, and are not kept\n")


@posix
def test_a_rank_prints_in_every_locale():
    text = ascii("Größe 数 →")
    code = f"""
import sys
from course_utils import launch
def train(): print({text}); print({text}, file=sys.stderr)
print(launch(train, ranks=1, device="cpu", show=False).output[0].splitlines() == [{text}] * 2)
"""
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert python("-c", code, cwd=ROOT, env=env).stdout == "True\n"


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
