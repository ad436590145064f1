"""From what ended a rank to one error for all of them: which one, what happened, at which line, and
what to do.
"""

from __future__ import annotations

import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from itertools import islice, takewhile
from typing import NamedTuple

from ..errors import PACKAGE, Frame, RankError, frames_of, location, own_frames
from .run import Run
from .whereabouts import Activity, RanksAt, Stacks, grouped, listed, returned, sentences
from .wire import Failure

MOST_MESSAGE = 2_000  # characters of an error's message
FRAMES_OF_C = "\nException raised from "  # after what it says, torch's C++ tells its own frames
MOST_CAUSES = 3  # errors that led to an error, and members of a group
ENDS = {"SIGKILL": "was killed", "SIGSEGV": "crashed", "SIGBUS": "crashed", "SIGABRT": "crashed"}
STACK = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)  # of faulthandler
LAST_WORDS = re.compile(r"^ *what\(\): *(.*)$", re.MULTILINE)  # of C++ that nobody caught


class Advice(NamedTuple):
    """What to do about a failure: of which cause, on which devices, with what in its text, and in
    which functions of torch. What is to be found is a regular expression.
    """

    sentence: str
    cause: str = ".*"  # all of it
    devices: Sequence[str] = ()  # (): all
    message: str = ""  # its group is a name that the notebook has
    line: str = ""  # the learner's last one, with its source
    inside: str = ""  # of what that line calls, "file function" each


without_gpu = partial(
    Advice,
    "These ranks have no GPU: take device = pick(), leave out device_ids= and calls of torch.cuda, "
    'and write backend="gloo" or none.',
    devices=["cpu"],
)
OF_A_LIBRARY = "These ranks have no GPU, and {} asks for one."
BY_STRING = (
    "A rank has those of the notebook's names that the function's code names, and {} was asked for "
    "by a string: name it in the function, or pass it."
)
FROM_C = (  # which leaves no frame of torch
    "Cannot access accelerator device when none|not linked with support for cuda|"
    "not compiled with CUDA enabled|pin_memory=True requires|"
    r"Cannot get CUDA generator|type torch\.cuda\.\w+ not available|device string: None"
)
ITSELF = r"\A\Z"  # the line raised it
ADVICE = (  # the first that fits counts
    Advice(
        "Where memory runs out, the system does this: use fewer ranks, a smaller model or smaller "
        "batches.",
        "SIGKILL",
    ),
    Advice("Often /dev/shm is full: use fewer DataLoader workers or smaller batches.", "SIGBUS"),
    Advice(  # TorchTPU ends a process so
        "Another process may have the TPU, which one at a time can have: shut down other kernels "
        "and programs that use it, and run this again.",
        "SIGABRT",
        ["tpu"],
    ),
    Advice(
        "Tensors of different sizes met in one collective: let all ranks call the same ones in the "
        "same order, with the same shapes, padded where a rank has less.",
        "SIGABRT",
        message=r"op\.preamble\.length",
    ),
    Advice(
        "All ranks end so where the server that they are forked from was killed, for its memory "
        "perhaps: the next launch starts another.",
        "Exit",
        message="exit code 255",
    ),
    Advice(
        "Compiled code gave up; on virtual cores, where one has not come to a collective for ten "
        "seconds.",
        "SIGABRT",
        ["XLA's CPU client"],
    ),
    Advice(
        "A process may not open so many files: raise the limit (`ulimit -n 4096`, before "
        "JupyterLab starts), or use fewer ranks.",
        r"OSError|RuntimeError|Dist\w*Error|SIGABRT",
        message=r"\[Errno 24\]|[:-] Too many open files(?: \(24\))?$",
    ),
    Advice(
        "These ranks have no GPU: use fully_shard, or give FullyShardedDataParallel "
        'device_id=torch.device("cpu").',
        devices=["cpu"],
        inside=r"fsdp/_init_utils\.py _init_device_handle",
    ),
    Advice(
        "These ranks have no GPU, which SyncBatchNorm needs: leave it out here.",
        devices=["cpu"],
        message="SyncBatchNorm expected input tensor to be on",
    ),
    without_gpu(message=FROM_C),
    without_gpu(inside="torch/(cuda|accelerator)/"),
    without_gpu(inside="torch/.*/distributed", message=r"(?i)\bnccl\b|\bdevice_ids?\b"),
    without_gpu(inside="get_default_backend_for_device", message="NoneType"),
    without_gpu("ZeroDivisionError", line=r"\bdevice_count\(\)", inside=ITSELF),
    without_gpu(
        "AttributeError", line=r"\bcurrent_accelerator\(\)", message="NoneType", inside=ITSELF
    ),
    Advice(
        "In a notebook sys.argv is the kernel's: set it first, as a shell would, for example "
        'sys.argv = ["train.py", "--steps=3"].',
        "SystemExit",
        inside=r"argparse\.py parse_args",
    ),
    Advice(BY_STRING, "NameError", message=r"name '(\w+)'", inside="<string> <module>$"),
    Advice(BY_STRING, "AttributeError", message=r"attribute '(\w+)' on <module '__main__'"),
    Advice(BY_STRING, "AttributeError", message=r"module '__main__' has no attribute '(\w+)'"),
    Advice(BY_STRING, "KeyError", message=r"'(\w+)'", line=r"globals\(\)\[", inside=ITSELF),
)


class Report(NamedTuple):
    """What an error says of ranks that failed, for a check to say it in words of its own."""

    label: str  # "rank 2 of 4"
    happened: str  # "raised ValueError: bad shard"
    lines: list[str]  # where that was
    groups: list[RanksAt]  # where the others are
    limit: float | None = None  # seconds; those in `groups` had not finished then
    ends: Sequence[str] = ()  # who had returned, and who waits for whom

    @property
    def sentence(self) -> str:
        return f"{self.label} {self.happened}"


def failed(
    run: Run, rank: int | None, first: Failure, stacks: Stacks, dead: dict[int, Failure]
) -> RankError:
    """A rank raised or died; `stacks`: where the others were; `dead`: those that died, too."""
    lines = [location(frame) for frame in own_frames(first.frames)[-3:]]
    label = f"the process of the {run.units}" if rank is None else run.label(rank)
    report = Report(label, first.happened, lines, grouped(stacks))
    others = [f"{run.unit} {other} {failure.happened}" for other, failure in dead.items()]
    others += sentences(report.groups, run.unit)
    others = [f"meanwhile {line}" for line in others]
    return RankError(
        [report.sentence, *lines, *others, advice(first, run.device)],
        rank=rank,
        cause=first.cause,
        traceback=first.traceback,
        run=run,
        report=report,
    )


def advice(failure: Failure, device: str) -> str:
    """What to do about it; "" where nobody knows."""
    own = own_frames(failure.frames)[-1:]
    inner = list(takewhile(lambda frame: frame not in own, failure.frames[::-1]))
    inside = "\n".join(f"{file} {function}" for file, _, function in inner[::-1])
    line = location(own[0]) if own else ""
    library = re.search(r"site-packages/(?!torch/)(\w+)", inside)
    for one in ADVICE:
        fits = re.fullmatch(one.cause, failure.cause) and device in (one.devices or [device])
        found = re.search(one.message, failure.happened)
        if fits and found and re.search(one.line, line) and re.search(one.inside, inside):
            if library and "cpu" in one.devices:
                return OF_A_LIBRARY.format(library[1])
            names = found.groups()
            if vars(sys.modules["__main__"]).keys() >= {*names}:
                return one.sentence.format(*names)
    return ""


def too_late(run: Run, limit: float, done: set[int], stacks: Stacks) -> RankError:
    """The time limit came before all ranks had returned; `stacks`: where the others were."""
    late = [rank for rank in range(run.ranks) if rank not in done]
    groups = grouped({rank: stacks[rank] for rank in late})
    busy = [rank for group in groups if not group.activity.waits for rank in group.ranks]
    suspects = late if len(late) == 1 else busy
    culprit = suspects[0] if len(suspects) == 1 else None

    ends = returned(done, run.unit)
    waiting = [] if culprit is None else [rank for rank in late if rank != culprit]
    if waiting:
        waits = RanksAt(waiting, Activity.wait(f"for {run.unit} {culprit}."), "")
        ends.append(waits.sentence(listed(waiting, run.unit)))
    label = f"{listed(late, run.unit)} of {run.ranks}"
    happened = f"had not finished after the time limit of {limit:g} s"
    report = Report(label, happened, [], groups, limit, ends)
    more_time = "If the work is only slow, pass a larger time_limit (seconds), or None."
    return RankError(
        [report.sentence, *sentences(groups, run.unit), *ends, more_time],
        rank=culprit,
        cause="TimeLimit",
        traceback="",
        run=run,
        report=report,
    )


def raised_by(error: BaseException) -> Failure:
    """What a rank tells of an exception."""
    name = type(error).__name__
    if isinstance(error, SystemExit):
        happened = f"called sys.exit({error}) before its function returned"
    else:
        happened = f"raised {in_full(error)}"
    frames = [one for one in frames_of(error) if not one[0].startswith(PACKAGE)]
    formatted = "".join(traceback.format_exception(error))
    return Failure(time.perf_counter(), name, happened, frames, formatted)


def in_full(error: BaseException, indent: str = "\n  ", most: int = MOST_CAUSES) -> str:
    """An exception with its notes, the members of a group, and the errors that led to it, `most`
    deep.
    """
    text = _in_words(error)
    if most == 0:
        return text
    if isinstance(error, BaseExceptionGroup):
        for member in islice(error.exceptions, MOST_CAUSES):
            text += f"{indent}one of them: {in_full(member, indent + '  ', most - 1)}"

    cause, words = error.__cause__, "caused by"
    if cause is None and not error.__suppress_context__:
        cause, words = error.__context__, "raised while handling"
    if cause is not None:
        text += f"{indent}{words} {in_full(cause, indent, most - 1)}"
    return text


def _in_words(error: BaseException) -> str:
    name = type(error).__name__
    notes: list[str] = []
    try:
        message = str(error).split(FRAMES_OF_C)[0]
        notes += [f"\n  {note}" for note in getattr(error, "__notes__", ())]
    except Exception as failed:
        message = f"(its text cannot be made: {type(failed).__name__})"
    if len(message) > MOST_MESSAGE:
        message = f"{message[:MOST_MESSAGE]}… ({len(message):,} characters)"
    return "".join([f"{name}: {message}" if message else name, *notes])


def died(exitcode: int, stack: str, printed: str) -> Failure:
    """What is known of a process that ended by itself.

    Args:
        stack: what `faulthandler` wrote of it, unless the function has it write elsewhere.
        printed: its output.
    """
    if exitcode >= 0:
        happened = f"ended with exit code {exitcode} before its function returned"
        return Failure(0.0, "Exit", happened, [], "")
    name = signal.Signals(-exitcode).name
    happened = f"{ENDS.get(name, 'was ended')} ({name})"
    if words := LAST_WORDS.findall(printed):
        happened += f": {words[-1][:MOST_MESSAGE]}"
    return Failure(0.0, name, happened, _frames_in(stack or printed), "")


def _frames_in(stack: str) -> list[Frame]:
    """The frames of the thread that crashed, outermost first, or of one in the learner's code."""
    threads = []
    for text in stack.split("\n\n"):
        frames = [(file, int(line), name) for file, line, name in STACK.findall(text)][::-1]
        if own_frames(frames):
            threads.append((text.lstrip().startswith("Current thread"), frames))
    return max(threads, key=lambda thread: thread[0], default=(False, []))[1]
