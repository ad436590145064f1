"""What happens inside a rank: its environment, its process group, and the way back; `launch.py` is the other side."""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import NoReturn

from ..errors import PACKAGE, Frame
from .payload import dumps
from .session import Session, Task, begin, watch
from .spans import SpanClock, recorder


def main(rank: int, connection: Connection, output: Connection) -> None:
    """Run one rank; the notebook's `Ranks.start` is the caller. Never returns."""
    enter(output)
    try:
        task: Task = connection.recv()
    except EOFError:  # the notebook changed its mind
        os._exit(0)
    take_over(task, RANK=str(rank), LOCAL_RANK=str(rank))
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)  # "where are you?", asked by the notebook
    session = Session(rank, connection, task.began)
    begin(session, whole_process=True)
    threading.Thread(target=watch, args=([session],), daemon=True).start()
    run(session, task, lambda: _join_group(rank, task))
    leave([connection])


def enter(output: Connection) -> None:
    """Make a process forked from the server one of its own, that writes to `output` and ends with the notebook."""
    # A session of its own, as torchrun's workers have: interrupts of the kernel pass by, its children end with it, and
    # Linux, which shares the CPU between sessions first, gives it a share of its own.
    os.setsid()
    _die_with_the_server()
    _write_to(output)
    mp.set_start_method("fork", force=True)  # else DataLoader workers could not get a Dataset defined in a cell


def take_over(task: Task, **env: str) -> None:
    """The notebook's environment variables, folder and cells, here."""
    os.environ.clear()
    os.environ.update(task.env, **env)
    os.chdir(task.cwd)
    linecache.cache.update(task.cells)


def run(session: Session, task: Task, prepare: Callable[[], None]) -> None:
    """Call the function and send its result, or whatever it raised, to the notebook."""
    try:
        prepare()
        function, args, kwargs = pickle.loads(task.payload)
        result = function(*args, **kwargs)
        _finish(session, result)
    except BaseException as error:
        sys.stdout.flush()
        session.flush()
        session.send("spans", _spans())
        session.send("error", time.perf_counter(), *describe(error))


def leave(connections: list[Connection]) -> NoReturn:
    """Keep the sockets open until the notebook lets go, so that peers see no secondary errors; then end."""
    for connection in connections:
        with contextlib.suppress(EOFError, OSError):
            connection.recv()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _finish(session: Session, result: object) -> None:
    try:
        payload = dumps(result)
    except Exception as error:
        raise TypeError(
            f"the function returned a {type(result).__name__}, which cannot be sent back to the notebook ({error}); "
            "return tensors, numbers, strings, or lists and dicts of them"
        ) from None
    sys.stdout.flush()
    session.flush()
    session.send("spans", _spans())
    session.send("result", payload)


def _spans() -> list[tuple]:
    try:
        return recorder.take()
    except Exception as error:  # a device that failed cannot say when its events happened
        print(f"the timeline was lost: {error}", file=sys.stderr)
        return []


def _join_group(rank: int, task: Task) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(task.threads)
    torch.seed()  # the server's state is every rank's: unseeded ranks are to differ, as under torchrun
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    device_id = None
    if task.device != "cpu":
        index = rank % torch.accelerator.device_count()
        torch.accelerator.set_device_index(index)
        device_id = torch.device(task.device, index)
    recorder.begin(SpanClock.on(task.device))
    if task.backend is not None:
        options = {} if task.timeout is None else {"timeout": timedelta(seconds=task.timeout)}
        if device_id is not None and task.backend != "gloo":
            options["device_id"] = device_id
        dist.init_process_group(task.backend, **options)


def describe(error: BaseException) -> tuple[str, str, list[Frame], str]:
    """An exception as (class name, message, frames that are not ours, formatted traceback)."""
    ours = PACKAGE + os.sep
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    text = "".join(traceback.TracebackException.from_exception(error).format())
    return type(error).__name__, str(error), [f for f in frames if not f[0].startswith(ours)], text


def _write_to(output: Connection) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (lives as long as the process)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _die_with_the_server() -> None:
    """The server ends when the kernel does; a rank that is stuck holding the GIL must end with it, too."""
    from multiprocessing import forkserver

    server = forkserver._forkserver
    if server._forkserver_alive_fd is not None:  # inherited: while ranks hold it, the server would stay
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
