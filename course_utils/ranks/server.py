"""The clean process that ranks are forked from.

It is `multiprocessing`'s fork server, preloaded with torch (`preload.py`). It never ran a kernel's
code, so it is safe after the kernel has used CUDA or a thread pool, and a rank takes milliseconds
to start, not seconds.
"""

import contextlib
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import spawn, util
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ..errors import PACKAGE, CourseError
from .files import File

ENVIRONMENT = {
    b"OPENBLAS_NUM_THREADS": b"1",  # with a pool of threads a process cannot be forked safely
    b"GOMP_SPINCOUNT": b"1000",  # threads that wait soon give their core to other ranks
    b"PJRT_SELECT_DEFAULT_DEVICE": b"0",  # `xla.launch` chooses, and says so
    b"TORCH_DEVICE_BACKEND_AUTOLOAD": b"0",  # a rank that is to have a TPU loads TorchTPU itself
}

# What the server does first; if it cannot, it says why, and ends.
PRELOAD = """
import os
try:
    import course_utils.ranks.preload
except BaseException as error:
    os.write({0}, f"{{type(error).__name__}}: {{error}}".encode(errors="replace"))
    os._exit(1)
os.close({0})
"""

LONGEST_FOLDER = 60  # characters; a socket's path has 103 on macOS, some of them Python's own
IMPORT_SECONDS = 60.0  # in which a new server imports torch, also where the disk is slow
ANSWER_SECONDS = 1.0  # in which one that is needed again may answer
HEAR_SECONDS = 0.15  # in which an interrupt is heard, where it can be
NO_ANSWER = (
    "no rank was started within the time limit: the server that ranks are forked from does not "
    "answer, or it still imports torch. Launch once more, with a larger time_limit where the "
    "machine is busy."
)
FORKED = (
    "launch was called in a process that the notebook has forked, and only the notebook's own can "
    "start ranks: call launch there, or start that process by spawn."
)
RANK = "a rank"  # how the notebook calls its process
OURS = (RANK, "ignore")  # and how `multiprocessing` calls the server
environment = dict(ENVIRONMENT)  # that the server was, or will at least be, started with
_starting = threading.Lock()
_started_by: int | None = None  # the process whose server it is
_said: File | None = None  # why the server could not import
_answered: int | None = None  # the server that has forked a process
_is_stuck = False  # a fork is waited for that nobody needs any more


def warm_up() -> None:
    """Start, in the background, the server that ranks are forked from; returns at once.

    It imports torch by itself (two to four seconds), so that the first `launch` finds it ready.
    """
    if sys.platform == "win32":
        return
    from multiprocessing import forkserver

    if _started_by not in (None, os.getpid()):
        raise CourseError(FORKED)
    _end_if_stuck()
    with _starting, _prepared({}):
        _choose_folder()
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
    global _said, _started_by
    *options, program = args
    begin = f"import sys; sys.path[:] = {_path()!r}\n"
    environ = {**os.environb} | ENVIRONMENT
    if "forkserver" in program:
        _said, _started_by = File.new(), os.getpid()
        passed = [*passed, _said.descriptor]
        begin += PRELOAD.format(_said.descriptor)
        environment.clear()
        environment.update(environ)
    with _undebugged():
        process = subprocess.Popen(
            [*options, begin + program],
            executable=path,
            pass_fds=passed,
            env=environ,
            process_group=0,
        )
    process.returncode = 0  # `multiprocessing` waits for it
    return process.pid


def _path() -> list[str]:
    """Where the server imports from: Python's own modules and this package first, whatever has
    their names in a folder, and then as the notebook does.
    """
    folders = [str(folder) for folder in sys.path if folder]
    library = sysconfig.get_path("stdlib")
    pythons_own = [
        folder
        for folder in folders
        if folder.startswith(library) and not folder.endswith(("site-packages", "dist-packages"))
    ]
    return [*pythons_own, str(Path(PACKAGE).parent), *folders]


def _undebugged() -> contextlib.AbstractContextManager:
    """JupyterLab's debugger, once attached, has each Python that is started wait for a client."""
    debugger = sys.modules.get("_pydev_bundle.pydev_monkey")
    skip = getattr(debugger, "skip_subprocess_arg_patch", contextlib.nullcontext)
    return skip()


def fork(target: Any, *args: Any) -> BaseProcess:
    """Start `target(*args)` in a process forked from the server, once that has imported torch."""
    global _answered, _is_stuck
    from multiprocessing import forkserver

    process = mp.get_context("forkserver").Process(target=target, args=args, name=RANK)
    # No more: of the notebook's process it gets what `state.py` sends.
    with _starting, _prepared({"authkey": mp.current_process().authkey}):
        process.start()
        _answered = vars(forkserver._forkserver)["_forkserver_pid"]
        _is_stuck = False
    return process


@contextlib.contextmanager
def _prepared(known: dict[str, Any]) -> Iterator[None]:
    """Let `multiprocessing` tell the server, or a rank, this: it would have each run a script again
    and find its own modules in the folder. Nor are streams flushed, because ipykernel keeps a
    socket for each thread that has touched one.
    """
    usual = spawn.get_preparation_data
    flush = vars(util)["_flush_std_streams"]

    def data(name: str) -> dict[str, Any]:
        return known if name in OURS else usual(name)

    spawn.get_preparation_data = data  # ty: ignore[invalid-assignment]  # called the same way
    vars(util)["_flush_std_streams"] = lambda: None
    try:
        yield
    finally:
        spawn.get_preparation_data = usual
        vars(util)["_flush_std_streams"] = flush


def in_time(work: Callable[[], None], limit: float, interrupts: Sequence[float]) -> float:
    """Let `work` fork processes, in a thread, because the server may never answer.

    Args:
        limit: seconds; a server that has just been started has more, because it imports torch.
        interrupts: when there were some, by `time.monotonic()`, which end this soon.

    Returns:
        When a limit ends that begins now, by the same clock.

    Raises:
        CourseError: the server has ended, or does not answer.
    """
    global _is_stuck
    errors: list[Exception] = []

    def fork_all() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=fork_all, daemon=True)
    thread.start()
    started = answered = time.monotonic()
    while thread.is_alive():
        now = time.monotonic()
        end = answered + limit
        if _is_new():
            answered = now  # at the earliest: its limit begins when it has imported
            end = started + max(limit, IMPORT_SECONDS)
        is_interrupted = interrupts and now > interrupts[0] + HEAR_SECONDS
        if is_interrupted or now > end:
            break
        thread.join(HEAR_SECONDS / 4)
    if thread.is_alive():
        # If it still does not answer when it is needed again, another one is started.
        _is_stuck = True
        if not interrupts:
            raise CourseError(NO_ANSWER)
    if errors and isinstance(errors[0], EOFError | OSError):
        said = os.pread(_said.descriptor, 1 << 12, 0) if _said else b""
        why = said.decode(errors="replace") or repr(errors[0])
        raise CourseError(
            f"no rank could be forked, because the server that they are forked from ended ({why}). "
            "The next launch starts another."
        ) from errors[0]
    if errors:
        raise errors[0]
    return time.monotonic() + limit


def _is_new() -> bool:
    """Whether the server has not forked yet: it may still import torch."""
    from multiprocessing import forkserver

    return _answered is None or vars(forkserver._forkserver)["_forkserver_pid"] != _answered


def _end_if_stuck() -> None:
    """End a server that has not answered in time, and does not now."""
    global _is_stuck
    from multiprocessing import forkserver

    if not _is_stuck:
        return
    server: Any = forkserver._forkserver
    if _starting.acquire(timeout=ANSWER_SECONDS):  # it has answered since
        _starting.release()
    else:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()
    _is_stuck = False
