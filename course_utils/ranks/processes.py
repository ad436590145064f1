"""The processes of a launch: each is forked from the server, and ended with all that it started."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import socket
import struct
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import psutil

from ..errors import CourseError
from ..style import plural
from .files import File
from .rank import begin
from .server import fork

FILES, FILES_OF_EACH = 24, 6  # that a launch opens in this process, and for each of the others
FINISH_SECONDS = 2.0  # in which a process that has returned or raised may end as Python does
TERMINATE_SECONDS = 2.0  # between asking a process to end and killing it
KILL_SECONDS = 10.0  # in which a process that was killed lets go of its device, and its files go
SERVER_SECONDS = 0.1  # in which the server says that a process has ended
MESSAGE_SECONDS = 10  # in which more of a message comes, unless its sender was stopped in it
LOOK_SECONDS = 0.002  # between two looks at who has ended


class Worker(NamedTuple):
    """One process of a launch, and what comes from it."""

    ranks: list[int]  # those in it: one, or all of a TPU's virtual cores
    process: BaseProcess
    messages: Connection
    output: Connection  # what it prints
    last_words: File  # where it was when it crashed

    @property
    def rank(self) -> int | None:
        """The only one in it; None if there are several."""
        return self.ranks[0] if len(self.ranks) == 1 else None


def check_files(processes: int) -> None:
    """Raise where this process may not open enough files for so many others."""
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = FILES + processes * FILES_OF_EACH
    here = len(os.listdir("/dev/fd"))
    if most != resource.RLIM_INFINITY and here + needed > most:
        raise CourseError(
            f"{plural(processes, 'rank')} take {needed} open files, and this kernel may open "
            f"{most}, of which it has {here}: launch fewer ranks, or write `ulimit -n 4096` in the "
            "terminal that starts JupyterLab"
        )


def forked(ranks: list[int], job: bytes, file: File | None) -> Worker:
    """A process in which `rank.begin` runs these ranks."""
    messages, theirs = mp.Pipe()
    with socket.socket(fileno=os.dup(messages.fileno())) as end:
        limit = struct.pack("ll", MESSAGE_SECONDS, 0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    output, printed = mp.Pipe(duplex=False)
    last_words = File.new()
    process = fork(begin, ranks, theirs, printed, last_words, job, file)
    theirs.close()
    printed.close()
    return Worker(ranks, process, messages, output, last_words)


def interrupt(worker: Worker) -> None:
    """As Ctrl+C does; not its children, which it ends itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        _send(psutil.Process(worker.process.pid), signal.SIGINT)


def end_all(workers: list[Worker], finishing: list[Worker]) -> None:
    """End these processes, all in their groups, and all that they have started elsewhere.

    Args:
        finishing: those that end by themselves, and what they have started, if they do so soon.
    """
    started = _started_by([worker for worker in workers if worker not in finishing])
    for worker in finishing:
        worker.process.join(SERVER_SECONDS)
    _wait(finishing, [], FINISH_SECONDS)
    started += _started_by(finishing)

    _wait(workers, started, TERMINATE_SECONDS, signal.SIGTERM)
    _wait(workers, started, KILL_SECONDS, signal.SIGKILL)
    for process in _left(workers, started):
        _send(process, signal.SIGKILL)
    for worker in workers:
        worker.process.join(SERVER_SECONDS)


def _started_by(workers: list[Worker]) -> list[psutil.Process]:
    """What is left of it, also outside of their groups."""
    started: list[psutil.Process] = []
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            started += psutil.Process(worker.process.pid).children(recursive=True)
    return started


def _wait(
    workers: list[Worker],
    started: list[psutil.Process],
    seconds: float,
    number: signal.Signals | None = None,
) -> None:
    """Until all have ended, at most so long; each gets the signal, if there is one, once.

    What removes files that others leave gets none: it ends when they have ended.
    """
    end = time.monotonic() + seconds
    seen: set[psutil.Process] = set()
    while (left := _left(workers, started)) and time.monotonic() < end:
        if number is not None:
            for process in left - seen:
                if not _removes_files(process):
                    _send(process, number)
        seen |= left
        time.sleep(LOOK_SECONDS)


def _left(workers: list[Worker], started: list[psutil.Process]) -> set[psutil.Process]:
    """Who has not ended of these, of all in their groups, and of those that they have started."""
    groups = {worker.process.pid for worker in workers}
    found = {*started}
    for pid in psutil.pids():
        if pid in groups or _group_of(pid) in groups:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.add(psutil.Process(pid))
    return {process for process in found if not _has_ended(process)}


def _group_of(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid)
    return None


def _has_ended(process: psutil.Process) -> bool:
    """Also if nobody has waited for it yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def _removes_files(process: psutil.Process) -> bool:
    """Whether it is a resource tracker, of `multiprocessing` or of joblib."""
    with contextlib.suppress(psutil.Error):
        return "resource_tracker" in " ".join(process.cmdline())
    return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
