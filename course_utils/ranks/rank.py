"""What happens inside a rank: its environment, its process group, and what it sends back.

`supervisor.py` is the other side.
"""

import contextlib
import ctypes
import itertools
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
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from ..errors import PACKAGE, Frame, frames_of
from . import group
from .spans import recorder
from .wire import Session, Task, begin, dumps

SEND_EVERY = 0.1  # seconds; metrics travel in batches, so that a report costs a step microseconds
STACK_EVERY = 5  # times that: where the rank is
MOST_MESSAGE = 2_000  # characters of an error's message


def main(ranks: list[int], connection: Connection, output: Connection, task: bytes) -> None:
    """Run one rank; the notebook's `Supervisor` is the caller. Never returns."""
    enter(output)
    todo: Task = pickle.loads(task)
    [rank] = ranks
    take_over(todo, RANK=str(rank), LOCAL_RANK=str(rank))
    session = Session(rank, connection, todo.began)
    begin(session, whole_process=True)
    run(session, todo, lambda: _begin(rank, todo))
    leave(connection)


def enter(output: Connection) -> None:
    """Make a process forked from the server one that ends with the notebook, prints to `output`."""
    # A session of its own, as torchrun's workers have: its children end with it, and Linux shares
    # the CPU between sessions first.
    os.setsid()
    _die_with_the_server()

    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (until the process ends)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115

    # DataLoader workers then get a Dataset that a cell defined.
    mp.set_start_method("fork", force=True)


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
        refusal = f"the function returned a {kind}, which cannot be sent back to the notebook"
        payload = dumps(result, refusal)
        _send_rest(session)
        session.send("result", payload)
    except BaseException as error:
        _send_rest(session)
        session.send("error", time.perf_counter(), *describe(error))


def watch(session: Session, thread: int) -> None:
    """Send what the rank reports, and where `thread` is, until the notebook's process is gone.

    Then end, children included.
    """
    server = mp.parent_process()
    assert server is not None, "a rank is forked from the server, which ends with the notebook"
    for tick in itertools.count():
        if wait([server.sentinel], SEND_EVERY):
            break
        try:
            session.flush()
            if tick % STACK_EVERY == 0:
                session.send("at", _where(thread), time.process_time())
        except OSError:
            break
    os.killpg(0, signal.SIGKILL)


def _where(thread: int) -> list[Frame]:
    """Where this thread is, in Python or in a call that waits; innermost first.

    A function of its own, because a frame that somebody still knows keeps its tensors: memory, and
    on virtual cores programs of another core's shape, which never meet.
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return []
    stack = traceback.walk_stack(frame)
    return [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in stack]


def leave(connection: Connection) -> NoReturn:
    """Keep the sockets open until the notebook lets go, so that peers see no errors; then end."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os._exit(0)


def describe(error: BaseException) -> tuple[str, str, list[Frame], str]:
    """An exception as (class name, message, frames that are not ours, formatted traceback)."""
    frames = frames_of(error)
    frames = [frame for frame in frames if not frame[0].startswith(PACKAGE + os.sep)]
    message = str(error)
    if len(message) > MOST_MESSAGE:
        message = f"{message[:MOST_MESSAGE]}… ({len(message):,} characters)"
    return type(error).__name__, message, frames, "".join(traceback.format_exception(error))


def _send_rest(session: Session) -> None:
    """What was printed, reported and recorded and is not yet on its way."""
    sys.stdout.flush()
    sys.stderr.flush()
    session.flush()
    try:
        session.send("spans", recorder.take())
    except RuntimeError as error:  # a device that failed cannot say when its events happened
        print(f"the timeline was lost: {error}", file=sys.stderr)


def _begin(rank: int, task: Task) -> None:
    import torch

    torch.set_num_threads(task.threads)
    # A fork has the server's random state; unseeded ranks are to differ, as under torchrun.
    torch.default_generator.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    group.join(rank, task.ranks, task.device, task.backend, task.timeout)
    recorder.begin(task.device)


def _die_with_the_server() -> None:
    """The server ends when the kernel does; so must a rank that is stuck holding the GIL."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    # Inherited: the server would stay while a rank holds it.
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # 1: PR_SET_PDEATHSIG
