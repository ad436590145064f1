"""What a real TPU needs and virtual cores do not: one host, chips that nobody holds, no settings of others. No torch.

Written from torch_xla's sources and from reports; nobody has run the course on a TPU yet.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from pathlib import Path

from ..errors import CourseError

# Kaggle's images set them for one process, and torch_xla keeps what is set: with a process a chip, the TPU then
# refuses to start ("Expected 4 worker addresses, got 1": Lightning-AI/pytorch-lightning#20244).
PRESET = ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID")
PATIENCE = 5.0  # seconds for the processes of a launch that has just ended
ENDS_AFTER = 1.0  # seconds, in which the cell's answer reaches the page


def forget_presets() -> None:
    """Leave it to torch_xla to number the processes of this host."""
    for name in PRESET:
        os.environ.pop(name, None)


def cores() -> int:
    """How many devices this host's TPU has; asks without taking it.

    Raises:
        CourseError: the slice has several hosts, or other processes hold the chips.
    """
    from torch_xla._internal import tpu

    try:
        hosts = tpu.num_tpu_workers()
    except OSError:  # no metadata server to ask, as on Colab
        hosts = 1
    if hosts > 1:
        raise CourseError(
            f"this TPU slice has {hosts} hosts, and a notebook reaches one: its cores would wait for the others "
            "for ever. Run a script on every host instead (notebook 16, Leaving the notebook), or take a slice with "
            "one host."
        )
    deadline = time.monotonic() + PATIENCE
    while (pids := holders()) and time.monotonic() < deadline:
        time.sleep(0.1)
    if pids:
        raise CourseError(
            f"the TPU is held by process {', '.join(map(str, pids))}, most likely the kernel of another notebook, and "
            "only one can have it: shut that kernel down (JupyterLab: Running Terminals and Kernels), then run again."
        )
    return tpu.num_available_devices()


def holders(root: Path = Path("/")) -> list[int]:
    """The other processes that have a TPU's chips open, by number."""
    found = set()
    for link in root.glob("proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if re.fullmatch(r"/dev/(accel\d+|vfio/\d+)", target):
            found.add(int(link.parts[-3]))
    return sorted(found - {os.getpid()})


def give_back() -> None:
    """Let the next notebook have the TPU: where this kernel holds one, the kernel ends. Elsewhere nothing happens."""
    module = sys.modules.get("torch_xla")
    held = module is not None and module._XLAC._xla_runtime_is_initialized()
    if os.environ.get("PJRT_DEVICE") != "TPU" or not held:
        print("This kernel holds no TPU.")
        return
    print("This kernel held the TPU and ends now; the next notebook finds it free.")
    threading.Timer(ENDS_AFTER, os._exit, (0,)).start()
