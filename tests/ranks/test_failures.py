"""What is said of a rank that failed, and what to do about it."""

import os

import pytest

from course_utils.ranks.failures import advice, died, in_full
from course_utils.ranks.wire import Failure

FAULT = """Fatal Python error: Aborted

Thread 0x0001 (most recent call first):
  File "/x/site-packages/course_utils/ranks/rank.py", line 9 in watch

Current thread 0x0002 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 8 in all_gather
  File "/tmp/ipykernel_1/2.py", line 6 in gather
"""


def test_a_process_that_crashed_has_a_line_and_last_words():
    failure = died(-6, FAULT, "starting\nterminate called\n  what():  sizes differ\n")
    assert failure.happened == "crashed (SIGABRT): sizes differ"
    assert failure.frames[0] == ("/tmp/ipykernel_1/2.py", 6, "gather")


@pytest.mark.parametrize(
    ("cause", "happened", "device", "words"),
    [
        ("SIGKILL", "was killed (SIGKILL)", "cpu", "Where memory runs out"),
        ("SIGABRT", "crashed: op.preamble.length <= op.nbytes. 8 vs 4", "cpu", "different sizes"),
        ("SIGABRT", "crashed", "XLA's CPU client", "on virtual cores"),
        ("SIGABRT", "crashed", "tpu", "Another process may have the TPU"),
        ("SIGABRT", "crashed", "cpu", ""),
        ("ValueError", "raised ValueError: data_0.csv is no accelerator", "cpu", ""),
        ("RuntimeError", "raised RuntimeError: No CUDA GPUs are available", "cpu", "pick()"),
        ("RuntimeError", "raised RuntimeError: No CUDA GPUs are available", "cuda", ""),
        ("ValueError", "raised ValueError: bad shard", "cpu", ""),
        ("OSError", "raised OSError: no such file: /home/nvidia/labels.txt", "cpu", ""),
    ],
)
def test_advice_fits_cause_words_and_device(cause, happened, device, words):
    found = advice(Failure(0.0, cause, happened, [], ""), device, [])
    assert words in found
    assert bool(words) == bool(found)


def test_a_name_that_was_asked_for_by_a_string_is_one_of_the_notebooks(kernel):
    kernel.works("Net = type('Net', (), {}); torch.save(Net(), 'net.pt'); LR = 0.1")
    for call, name in (
        ("torch.load('net.pt', weights_only=False)", "Net"),
        ("eval('LR')", "LR"),
        ("globals()['Net']", "Net"),
        ("missing", ""),
    ):
        answer = kernel.run(f"def train():\n    {call}\nlaunch(train, ranks=1)")
        words = f"{name} was asked for by a string"
        assert answer.shown.count(words) == bool(name), answer.shown
    os.remove("net.pt")


def test_an_error_is_told_with_its_notes_causes_and_members():
    try:
        try:
            {}["lr"]
        except KeyError as cause:
            error = ValueError("no config")
            error.add_note("look at batch 3")
            raise error from cause
    except ValueError as error:
        text = in_full(error)
    assert text == "ValueError: no config\n  look at batch 3\n  caused by KeyError: 'lr'"

    inner = ExceptionGroup("inner", [KeyError("b")])
    group = ExceptionGroup("outer", [ValueError("a"), inner])
    assert in_full(group).splitlines()[1:] == [
        "  one of them: ValueError: a",
        "  one of them: ExceptionGroup: inner (1 sub-exception)",
        "    one of them: KeyError: 'b'",
    ]
