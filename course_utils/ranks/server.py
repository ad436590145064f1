"""The clean process that ranks are forked from.

It is `multiprocessing`'s fork server, preloaded with torch (`preload.py`). It never ran a kernel's
code, so it is safe after the kernel has used CUDA or a thread pool, and a rank takes milliseconds
to start, not seconds.
"""

import multiprocessing as mp
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import spawn, util
from multiprocessing.process import BaseProcess
from typing import Any

ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # with a pool of threads a process cannot be forked safely
    "GOMP_SPINCOUNT": "1000",  # threads that wait soon give their core to other ranks
    "PJRT_SELECT_DEFAULT_DEVICE": "0",  # `xla.launch` chooses, and says so
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # a rank that is to have a TPU loads TorchTPU itself
}

LONGEST_FOLDER = 60  # characters; a socket's path has 103 on macOS, some of them Python's own
RANK = "a rank"  # how the notebook calls its process
_starting = threading.Lock()


def warm_up() -> None:
    """Start, in the background, the server that ranks are forked from; returns at once.

    It imports torch by itself (two to four seconds), so that the first `launch` finds it ready.
    """
    if sys.platform == "win32":
        return
    from multiprocessing import forkserver

    with _starting:
        _choose_folder()
        mp.get_context("forkserver").set_forkserver_preload(["course_utils.ranks.preload"])
        usual = util.spawnv_passfds
        util.spawnv_passfds = _spawn  # ty: ignore[invalid-assignment]  # called the same way
        try:
            forkserver.ensure_running()
        finally:
            util.spawnv_passfds = usual


def _choose_folder() -> None:
    """Let `multiprocessing` put its sockets into /tmp where TMPDIR, as some schedulers set it, is
    too long for a socket's path.
    """
    usual = tempfile.gettempdir()
    if len(usual) > LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"
        try:
            util.get_temp_dir()  # it is made now, and removed at the end
        finally:
            tempfile.tempdir = usual


def _spawn(path: bytes, args: list, passed: list[int]) -> int:
    """Start the server, or `multiprocessing`'s resource tracker, in a process group of its own.

    Interrupts go to the kernel's group, and are for the kernel alone. A kernel that is told to stop
    first ends its own group and would wait for the tracker, which ignores the signal, for seconds.
    Both end once the kernel has gone.
    """
    process = subprocess.Popen(
        args, executable=path, pass_fds=passed, env=os.environ | ENVIRONMENT, process_group=0
    )
    process.returncode = 0  # `multiprocessing` waits for it
    return process.pid


def fork(target: Any, *args: Any) -> BaseProcess:
    """Start `target(*args)` in a process forked from the server, once that has imported torch."""
    process = mp.get_context("forkserver").Process(target=target, args=args, name=RANK)
    with _starting:
        usual = spawn.get_preparation_data
        spawn.get_preparation_data = partial(_preparation, usual)
        try:
            process.start()
        finally:
            spawn.get_preparation_data = usual
    return process


def _preparation(usual: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any]:
    """What a new process is to know. A rank does not run a script again to find its function,
    which travels by value.
    """
    vars(sys.modules["__main__"]).setdefault("__spec__", None)  # IPython's has none
    data = usual(name)
    if name == RANK:
        for way in ("init_main_from_name", "init_main_from_path"):
            data.pop(way, None)
        found = [getattr(sys.path_importer_cache.get(path), "path", path) for path in sys.path]
        data["sys_path"] = [path or os.getcwd() for path in found]  # none depends on the folder
    return data
