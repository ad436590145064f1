"""What is said of a rank that failed, and what to do about it."""

import argparse  # noqa: F401
import os
import pickle
import sys
from unittest import mock

import pytest
import torch
import torch.distributed as dist  # noqa: F401
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: F401
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils import RankError, launch
from course_utils.errors import MOST_FRAMES
from course_utils.ranks.advice import advice
from course_utils.ranks.failures import died, in_full, raised_by
from course_utils.ranks.wire import Failure
from tests.kernel import posix
from tests.tables import rows

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
    assert died(-36, "", "").happened == "was ended (signal 36)"  # one for real time


def test_a_process_that_leaves_has_not_returned():
    assert died(0, "", "").happened == "ended with exit code 0 before its function returned"
    told = raised_by(SystemExit(5)).happened
    assert told == "called sys.exit(5) before its function returned"


FAILURES = """
cause         what happened                                        device            advice
SIGKILL       was killed (SIGKILL)                                 cpu               memory runs out
SIGABRT       crashed: op.preamble.length <= op.nbytes. 8 vs 4     cpu               different siz
SIGABRT       crashed                                              XLA's CPU client  virtual cores
SIGABRT       crashed                                              tpu               have the TPU
SIGABRT       crashed: the reader expected size 4                  cpu               nobody knows
OSError       raised OSError: [Errno 24] Too many open files: 'a'  cpu               ulimit -n 4096
RuntimeError  raised … rv != -1. socket: Too many open files       cuda              ulimit -n 4096
ValueError    raised ValueError: bad shard                         cpu               nobody knows
Exit          ended with exit code 255 before                      cpu               forked from
"""


@pytest.mark.parametrize(("cause", "happened", "device", "words"), rows(FAILURES))
def test_advice_fits_cause_words_and_device(cause, happened, device, words):
    assert words in (advice(Failure(0.0, cause, happened, [], ""), device) or "nobody knows")


def of_a_user():
    raise ValueError("no cuda today: nccl, device_ids")


def through_a_model():
    model = nn.Linear(1, 1)
    model.register_forward_hook(lambda *_: of_a_user())
    DDP(model)(torch.ones(1))


def an_accelerator_that_is_none():
    accelerator = None
    accelerator.backward()  # ty: ignore


LINES = {  # of public programs, and a word of what is said to them where there is no GPU
    "torch.cuda.set_device(0)": "pick()",
    "torch.cuda.reset_peak_memory_stats()": "pick()",
    "torch.cuda.Event()": "pick()",
    "torch.accelerator.set_device_index(0)": "pick()",
    "nn.Linear(1, 1).cuda(0)": "pick()",
    "torch.ones(1).to(0)": "pick()",
    "torch.ones(1).pin_memory()": "pick()",
    "torch.cuda.Stream()": "pick()",
    "torch.ones(1, device='cuda')": "pick()",
    "torch.Generator('cuda')": "pick()",
    "argparse.ArgumentParser().parse_args()": "sys.argv is the kernel's",
    "0 % torch.cuda.device_count()": "pick()",
    "torch.accelerator.current_accelerator().type": "pick()",
    "dist.get_default_backend_for_device(torch.accelerator.current_accelerator())": "pick()",
    "DDP(nn.Linear(1, 1), device_ids=[0])": "device_ids=",
    "dist.new_group(backend='NCCL')": 'backend="gloo" or none',
    "FSDP(nn.Linear(1, 1))": "use fully_shard",
    "FSDP(nn.Linear(1, 1), device_id=0)": "use fully_shard",
    "argparse.ArgumentParser().parse_args(['--x'])": "",
    "of_a_user()": "",
    "through_a_model()": "",
    "an_accelerator_that_is_none()": "",
    "{}['cuda']": "",
}


WITH_CUDA = {  # which a build with CUDA takes without a GPU
    "torch.cuda.Event()",
    "torch.accelerator.current_accelerator().type",
    "dist.get_default_backend_for_device(torch.accelerator.current_accelerator())",
}


def told(lines):
    """What is said of each line that fails in a rank."""
    said = {}
    for line in lines:
        try:
            exec(compile(line, __file__, "exec"), globals())
        except BaseException as error:
            with mock.patch("linecache.getline", lambda *_, line=line: line):
                said[line] = advice(raised_by(error), "cpu")
    return said


@posix
@pytest.mark.skipif(torch.accelerator.is_available(), reason="what torch raises without a GPU")
def test_a_line_that_asks_for_a_gpu_is_told_what_to_write(monkeypatch):
    monkeypatch.setattr("sys.argv", ["kernel.py", "-f", "kernel.json"])
    [said] = launch(told, LINES, ranks=1, device="cpu").results
    taken = WITH_CUDA if torch.backends.cuda.is_built() else set()
    assert said.keys() == LINES.keys() - taken
    for line, advised in said.items():
        words = LINES[line]
        assert words in advised, line
        assert bool(words) == ("These ranks have no GPU" in advised or "sys.argv" in advised)


def test_an_error_is_told_with_its_notes_and_causes():
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


def test_a_group_is_told_with_the_errors_in_it():
    """asyncio.TaskGroup raises one."""
    group = ExceptionGroup("in tasks", [ValueError("a"), ExceptionGroup("b", [KeyError("c")])])
    said = ("ValueError: a", "ExceptionGroup: b (1 sub-exception)", "KeyError: 'c'")
    assert in_full(group) == "\n  with ".join(
        ["ExceptionGroup: in tasks (2 sub-exceptions)", *said]
    )


def test_an_error_may_go_to_another_process():
    """joblib's workers, each of which launches."""
    with pytest.raises(RankError) as caught:
        launch(os.kill, 0, 9, ranks=1, device="cpu")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (str(error), error.cause, error.run.ranks) == (str(caught.value), "SIGKILL", 1)


class Odd(ValueError):
    def __str__(self):
        raise KeyError


def test_an_error_whose_text_cannot_be_made_is_told_all_the_same():
    assert in_full(Odd()) == "Odd: (its text cannot be made: KeyError)"
    error = ValueError("v")
    vars(error)["__notes__"] = 5
    assert in_full(error) == "ValueError: (its text cannot be made: TypeError)"


def test_of_a_deep_recursion_the_innermost_calls_are_told():
    def down():
        down()

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3 * MOST_FRAMES)
    try:
        with pytest.raises(RecursionError) as caught:
            down()
    finally:
        sys.setrecursionlimit(limit)
    assert len(raised_by(caught.value).frames) == MOST_FRAMES
