"""What to do about a failure, where what raised it tells."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import NamedTuple

from ..errors import location, own_frames
from .wire import Failure


class Advice(NamedTuple):
    """What to do about a failure: of which cause, on which device, with what in its text, and in
    which functions of torch. All but the device are regular expressions.
    """

    sentence: str
    cause: str = ".*"  # all of it
    device: str = ""  # "": any
    message: str = ""
    line: str = ""  # the learner's last one, with its source
    inside: str = ""  # of what that line calls, "file function" each


NO_GPU = (
    "These ranks have no GPU: take device = pick(), leave out device_ids= and calls of torch.cuda, "
    'and write backend="gloo" or none.'
)
FROM_C = (  # which leaves no frame of torch; the first line is of builds with CUDA
    "Found no NVIDIA driver|No CUDA GPUs are available|no GPUs found|CUDA error|"
    "Cannot access accelerator device when none|not linked with support for cuda|"
    "not compiled with CUDA enabled|pin_memory=True requires|"
    r"Cannot get CUDA generator|type torch\.cuda\.\w+ not available|device string: None"
)
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
        "tpu",
    ),
    Advice(
        "Tensors of different sizes met in one collective: let all ranks call the same ones in the "
        "same order, with the same shapes, padded where a rank has less.",
        "SIGABRT",
        message=r"op\.preamble\.length",
    ),
    Advice(
        "Ranks also end so where the server that they are forked from was killed, for its memory "
        "perhaps: the next launch starts another.",
        "Exit",
        message="exit code 255",
    ),
    Advice(
        "Compiled code gave up; on virtual cores, where one has not come to a collective for ten "
        "seconds. If all have come there, call torch_xla.sync() before the line that reads a "
        "tensor.",
        "SIGABRT",
        "XLA's CPU client",
    ),
    Advice(
        "A process may not open so many files: raise the limit (`ulimit -n 4096`, before "
        "JupyterLab starts), or use fewer ranks.",
        message="Too many open files",
    ),
    Advice(
        "These ranks have no GPU: use fully_shard, or give FullyShardedDataParallel "
        'device_id=torch.device("cpu").',
        device="cpu",
        inside=r"fsdp/_init_utils\.py (_init_device_handle|_move_states_to_device)",
    ),
    Advice(NO_GPU, device="cpu", message=FROM_C),
    Advice(NO_GPU, device="cpu", inside="torch/(cuda|accelerator)/"),
    Advice(
        NO_GPU,
        device="cpu",
        message=r"(?i)\bnccl\b|\bdevice_ids?\b",
        inside="torch/.*/distributed",
    ),
    Advice(
        NO_GPU,
        device="cpu",
        message="by zero",
        line=r"\bdevice_count\(\)",
    ),
    Advice(
        NO_GPU,
        device="cpu",
        message="NoneType",
        line=r"\bcurrent_accelerator\(\)",
    ),
    Advice(
        "In a notebook sys.argv is the kernel's until you set it, as a shell would, for example "
        'sys.argv = ["train.py", "--steps=3"].',
        "SystemExit",
        line=r"\.parse_(known_)?args\(\)",
        inside=r"argparse\.py parse_",
    ),
)


def advice(failure: Failure, device: str) -> str:
    """What to do about it; "" where nobody knows."""
    own = own_frames(failure.frames)[-1:]
    inner = list(takewhile(lambda frame: frame not in own, failure.frames[::-1]))
    inside = "\n".join(f"{file} {function}" for file, _, function in inner[::-1])
    line = location(own[0]) if own else ""
    for one in ADVICE:
        if (
            re.fullmatch(one.cause, failure.cause)
            and one.device in ("", device)
            and re.search(one.message, failure.happened)
            and re.search(one.line, line)
            and re.search(one.inside, inside)
        ):
            return one.sentence
    return ""
