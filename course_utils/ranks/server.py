"""The clean process that ranks are forked from.

It is `multiprocessing`'s fork server, preloaded with torch (`preload.py`). It never ran a kernel's code, so it is
safe after the kernel has used CUDA or a thread pool, and a rank takes milliseconds to start, not seconds.
"""

import contextlib
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from multiprocessing import util
from multiprocessing.process import BaseProcess
from typing import Any

ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # with a pool of threads a process cannot be forked safely
    "GOMP_SPINCOUNT": "1000",  # threads that wait for each other soon give their core to other ranks
}

_starting = threading.Lock()


def warm_up() -> None:
    """Start, in the background, the server that ranks are forked from; returns at once.

    It imports torch by itself (two to four seconds), so that the first `launch` finds it ready.
    """
    if sys.platform == "win32":
        return
    from multiprocessing import forkserver, resource_tracker

    with _starting, _spawning_apart():
        resource_tracker.ensure_running()  # here, because on its way it would undo the mask below
        mp.get_context("forkserver").set_forkserver_preload(["course_utils.ranks.preload"])
        # The server and all ranks inherit the mask: interrupts are for the kernel alone.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _spawning_apart() -> Iterator[None]:
    """The server, and `multiprocessing`'s resource tracker, start in process groups of their own.

    A kernel that is told to stop first ends its own group, and waits for the tracker, which ignores the signal: a
    restart takes seconds more, and `multiprocessing` does not tidy up. Both end by themselves once the kernel has gone.
    """

    def spawn(path: bytes, args: list, passed: list[int]) -> int:
        env = os.environ | ENVIRONMENT
        process = subprocess.Popen(args, executable=path, pass_fds=passed, env=env, process_group=0)
        process.returncode = 0  # `multiprocessing` waits for it
        return process.pid

    together, util.spawnv_passfds = util.spawnv_passfds, spawn
    try:
        yield
    finally:
        util.spawnv_passfds = together


def fork(target: Any, *args: Any) -> BaseProcess:
    """Start `target(*args)` in a new process forked from the server; waits for the server if it is still importing."""
    process = mp.get_context("forkserver").Process(target=target, args=args)
    with _starting:
        # The function travels by value: a rank must not run a script again to find it.
        main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
        try:
            process.start()
        finally:
            sys.modules["__main__"] = main
    return process
