"""Makes a process that was forked from the server a Python program of its own, and ends it as one.

Its children end with it, it prints to the notebook, and like any program it joins its threads, runs
its exit handlers and writes its files before it is done.
"""

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import io
import logging
import multiprocessing as mp
import multiprocessing.util
import os
import signal
import stat
import sys
import threading
import traceback
import types
import weakref
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import psutil

from ..errors import Frame
from .page import NoKeyboard, display

# What Python itself does at its exit: removes temporary folders, joins processes, flushes logs.
PYTHONS_OWN = (
    weakref.finalize._exitfunc,  # ty: ignore[missing-attribute]
    multiprocessing.util._exit_function,  # ty: ignore[missing-attribute]
    logging.shutdown,
)
server: Any = None  # the process that this one was forked from
_forgotten: list[dict] = []  # to free them would touch, and so copy, much of the server's memory
LIBC = ctypes.CDLL(None)
WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
CHILDREN = Path("/proc/self/task")


def forget() -> None:
    """In the server, when all is imported: let its ranks have nothing of its program.

    What its libraries have registered takes longer at an exit than a launch, and is about it.
    """
    atexit._clear()
    _forgotten.append(weakref.finalize._registry)  # ty: ignore[missing-attribute]
    weakref.finalize._registry = {}  # ty: ignore[missing-attribute]
    for handler in PYTHONS_OWN:
        atexit.register(handler)
    logging.root.handlers.clear()
    vars(builtins).update(display=display, get_ipython=lambda: None)
    vars(sys)["breakpointhook"] = NoKeyboard().readline


def begin(output: Connection, last_words: int) -> None:
    """Become a program of its own, a rank's.

    Args:
        output: where what is printed goes.
        last_words: a file, for where the process is when it crashes.
    """
    global server
    server = mp.parent_process()
    process: Any = mp.current_process()
    process._identity = ()
    process.name = "MainProcess"
    vars(mp.process)["_parent_process"] = None

    # A session of its own, as torchrun's workers have: its children end with it, and Linux shares
    # the CPU between sessions first.
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is a function to interrupt
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _die_with_the_server()

    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    sys.stdin = NoKeyboard()
    for descriptor, name in enumerate(("stdout", "stderr"), 1):
        # As the notebook's, whatever the locale.
        stream = open(descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
        vars(sys).update({name: stream, f"__{name}__": stream})
    faulthandler.enable(last_words)

    sys.modules["__main__"] = types.ModuleType("__main__")
    # DataLoader workers then get a Dataset that a cell defined. The function may choose, once.
    mp.set_start_method(None, force=True)
    vars(mp.context._default_context)["_default_context"] = mp.get_context("fork")
    # The server's tracker ends with the kernel; a rank's own removes what the rank has left.
    tracker = resource_tracker._resource_tracker
    vars(tracker).update(_fd=None, _pid=None)


def end() -> None:
    """What Python does at its end, but for its finalization, in which torch's threads may hang."""
    threading._shutdown()  # ty: ignore[missing-attribute]  # joins threads that are no daemons
    atexit._run_exitfuncs()
    if _is_writing():
        for file in gc.get_objects():  # of this rank alone: the server's are frozen
            if issubclass(type(file), WRITERS):  # `isinstance` would ask proxies of what is gone
                with contextlib.suppress(OSError, ValueError):  # it is closed, or only read
                    file.flush()


def _is_writing() -> bool:
    """Whether a file that has a name, or a pipe, is open for writing."""
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # of the listing itself
            found = os.fstat(number)
            writes = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
            is_file = stat.S_ISREG(found.st_mode) and found.st_nlink
            is_pipe = stat.S_ISFIFO(found.st_mode) and number > 2
            if writes and (is_file or is_pipe):
                return True
    return False


def end_fork(error: BaseException | None) -> NoReturn:
    """End a process that the function has forked; `error`: what nobody caught."""
    code = 0
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        code = error.code or 0
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    try:
        end()
        sys.stdout.flush()
    finally:
        os._exit(code)


def is_ending(frames: list[Frame]) -> bool:
    """Whether a rank that is here has returned, and waits for what `end` waits for."""
    return any(file == __file__ and function == "end" for file, _, function in frames)


def leave(connection: Connection) -> NoReturn:
    """Keep the sockets open until the notebook lets go, so that peers see no errors; then end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    if sys.platform != "linux" or any(map(_has_started, CHILDREN.glob("*/children"))):
        kill_other_sessions()
    os._exit(0)


def _has_started(children: Path) -> bool:
    """Whether this thread of the process has started others that live."""
    with contextlib.suppress(OSError):  # it has ended since
        return bool(children.read_text())
    return False


def kill_other_sessions() -> None:
    """Kill what this rank has started in other sessions; what is in its own, others end, in time to
    clean up after itself.
    """
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(child.pid) != os.getpid():
                child.kill()


def _die_with_the_server() -> None:
    """The server ends when the kernel does; so must a rank that is stuck holding the GIL."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    # Inherited: the server would stay while a rank holds it.
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # 1: PR_SET_PDEATHSIG
