"""What happens inside a rank: its environment, its process group, and the way back; `crew.py` is the other side."""

import contextlib
import ctypes
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
from .report import Session, Task, begin, dumps, watch
from .spans import recorder


def main(ranks: list[int], connection: Connection, output: Connection, task: bytes) -> None:
    """Run one rank; the notebook's `Crew` is the caller. Never returns."""
    enter(output)
    todo: Task = pickle.loads(task)
    [rank] = ranks
    take_over(todo, RANK=str(rank), LOCAL_RANK=str(rank))
    session = Session(rank, connection, todo.began)
    begin(session, whole_process=True)
    run(session, todo, lambda: _join_group(rank, todo))
    leave(connection)


def enter(output: Connection) -> None:
    """Make a process forked from the server one of its own, that ends with the notebook and prints to `output`."""
    # As torchrun's workers: its children end with it, and Linux shares the CPU between sessions first.
    os.setsid()
    _die_with_the_server()
    for name, descriptor in {"stdout": 1, "stderr": 2}.items():
        os.dup2(output.fileno(), descriptor)
        setattr(sys, name, open(descriptor, "w", buffering=1, closefd=False))  # noqa: SIM115 (until the process ends)
    output.close()
    mp.set_start_method(
        "fork", force=True
    )  # else DataLoader workers could not get a Dataset defined in a cell


def take_over(task: Task, **env: str) -> None:
    """The notebook's environment variables, folder and cells, here."""
    os.environ.clear()
    os.environ.update(task.env, **env)
    os.chdir(task.cwd)
    linecache.cache.update(task.cells)


def run(session: Session, task: Task, prepare: Callable[[], None]) -> None:
    """Call the function and send its result, or whatever it raised, to the notebook."""
    threading.Thread(target=watch, args=(session, threading.get_ident()), daemon=True).start()
    try:
        prepare()
        function, args, kwargs = pickle.loads(task.payload)
        result = function(*args, **kwargs)
        kind = type(result).__name__
        payload = dumps(
            result, f"the function returned a {kind}, which cannot be sent back to the notebook"
        )
        _send_rest(session)
        session.send("result", payload)
    except BaseException as error:
        _send_rest(session)
        session.send("error", time.perf_counter(), *describe(error))


def leave(connection: Connection) -> NoReturn:
    """Keep the sockets open until the notebook lets go, so that peers see no secondary errors; then end."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os._exit(0)


def describe(error: BaseException) -> tuple[str, str, list[Frame], str]:
    """An exception as (class name, message, frames that are not ours, formatted traceback)."""
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    frames = [frame for frame in frames if not frame[0].startswith(PACKAGE + os.sep)]
    return type(error).__name__, str(error), frames, "".join(traceback.format_exception(error))


def _send_rest(session: Session) -> None:
    """What was printed, reported and recorded and is not yet on its way."""
    sys.stdout.flush()
    sys.stderr.flush()
    session.flush()
    try:
        session.send("spans", recorder.take())
    except RuntimeError as error:  # a device that failed cannot say when its events happened
        print(f"the timeline was lost: {error}", file=sys.stderr)


def _join_group(rank: int, task: Task) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(task.threads)
    torch.default_generator.seed()  # the server's state is every rank's: unseeded ranks differ, as under torchrun
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    options = {} if task.timeout is None else {"timeout": timedelta(seconds=task.timeout)}
    if task.device != "cpu":
        torch.accelerator.set_device_index(rank)
        options["device_id"] = torch.device(task.device, rank)
    recorder.begin(task.device)
    if task.backend is not None:
        dist.init_process_group(task.backend, **options)


def _die_with_the_server() -> None:
    """The server ends when the kernel does; a rank that is stuck holding the GIL must end with it, too."""
    from multiprocessing import forkserver

    server = forkserver._forkserver
    if (
        server._forkserver_alive_fd is not None
    ):  # inherited: while ranks hold it, the server would stay
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # 1: PR_SET_PDEATHSIG
