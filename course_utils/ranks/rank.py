"""What happens inside a rank: it calls the function and sends what came of it.

`supervisor.py` is the other side.
"""

import contextlib
import inspect
import itertools
import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from ..errors import MOST_FRAMES, Frame
from . import group, program, state, values
from .failures import raised_by
from .files import File
from .spans import recorder
from .wire import (
    At,
    Failure,
    Interrupted,
    Message,
    Returned,
    Session,
    Spans,
    Task,
    WithoutThese,
    current,
    set_session,
)

SEND_SECONDS = 0.1  # metrics travel in batches, so that a report costs a step microseconds
STACK_EVERY = 2  # times that: where the rank is

Outcome = tuple[Message, File | None]  # of a call, with the file of its large values


def begin(
    ranks: list[int],
    connection: Connection,
    output: Connection,
    last_words: File,
    job: bytes,
    file: File | None,
) -> None:
    """Run the ranks of this process; the notebook's `Supervisor` is the caller. Never returns.

    Args:
        job: a pickle of how they are run, `main` or that of virtual cores, and of their task.
    """
    try:
        program.begin(output, last_words.descriptor)
        how, task = pickle.loads(job)
        how(ranks, connection, task, file)
    except BaseException as error:  # of ours: what the function raises has been sent
        with contextlib.suppress(OSError):
            connection.send((ranks[0], _not_begun(error)))
    program.leave(connection)


def main(ranks: list[int], connection: Connection, task: Task, file: File | None) -> None:
    """Run one rank."""
    [rank] = ranks
    session = Session(rank, connection, task.started)
    set_session(session, whole_process=True)

    def prepare() -> None:
        numbers = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
        left_out = state.restore(task.state, task.threads, **numbers)
        if left_out:
            session.send(WithoutThese([*left_out]))
        group.join(rank, task.device, task.backend, task.timeout)
        recorder.start_recording(task.device)
        signal.signal(signal.SIGINT, _interrupt)

    def finish() -> None:
        if task.device != "cpu":
            sys.modules["torch"].accelerator.synchronize()

    def end() -> None:
        from .. import joining  # which imports torch

        program.end()  # where the processes that it has forked are joined
        joining.check_forked()

    outcome = run(session, task.call, file, prepare, finish, partial(state.settle, task.state))
    if outcome:
        close(session, outcome, end)
    else:
        with contextlib.suppress(Exception):  # the notebook knows of an error already
            program.end()


def _interrupt(*_: Any) -> NoReturn:
    if session := current():  # not a process that the function has forked
        session.send_if_free(Interrupted())
    raise KeyboardInterrupt


def run(
    session: Session,
    call: values.Parcel,
    file: File | None,
    prepare: Callable[[], None],
    finish: Callable[[], None],
    settle: Callable[[], None] = lambda: None,
) -> Outcome | None:
    """Call the function; its outcome is for `close`. The notebook gets at once what it raised.

    Args:
        prepare, finish: before the call, and when the function has returned.
        settle: when opening the call has imported something.
    """
    try:
        threading.Thread(target=watch, args=(session, threading.get_ident()), daemon=True).start()
        prepare()
    except BaseException as error:
        _send_error(session, error, _not_begun)
        return None
    try:
        return _outcome(call, file, finish, settle)
    except BaseException as error:
        _send_error(session, error)
        return None


def close(
    session: Session, outcome: Outcome, end_process: Callable[[], None] = lambda: None
) -> None:
    """Send what came of the call. The end of the process belongs to it: it may raise, or wait."""
    try:
        _send_spans(session)  # while the device is there: TorchTPU's exit handler ends it
        end_process()
        if recorder.synchronize is None:  # of threads that went on
            _send_spans(session)
        _send_rest(session)
        session.send(*outcome)
    except BaseException as error:
        _send_error(session, error)


def _not_begun(error: BaseException) -> Failure:
    """What a rank tells of an exception before its function was called."""
    failure = raised_by(error)
    return failure._replace(happened=f"could not begin: it {failure.happened}")


def _send_error(
    session: Session,
    error: BaseException,
    failure: Callable[[BaseException], Failure] = raised_by,
) -> None:
    with contextlib.suppress(OSError):  # the launch is over, and nobody listens
        _send_spans(session)
        with contextlib.suppress(Exception):  # of a stream of the program's own
            _send_rest(session)
        session.send(failure(error))


def _outcome(
    call: values.Parcel,
    file: File | None,
    finish: Callable[[], None],
    settle: Callable[[], None],
) -> Outcome:
    """What comes of the call; nothing of it is held when this returns."""
    imported = len(sys.modules)
    function, args, kwargs = values.unpack(call, file)
    if len(sys.modules) > imported:
        settle()
    result = _called(function, args, kwargs)
    finish()
    kind, frames = type(result).__name__, _place_of(function)
    if inspect.iscoroutine(result):
        result.close()  # else Python says that nobody has awaited it
    refusal = f"returned a {kind}, which cannot be sent back to the notebook"
    try:
        parcel, written = values.pack(result, refusal)
    except values.CannotBeSent as error:
        return raised_by(error)._replace(happened=str(error), frames=frames), None
    return Returned(kind, frames, parcel, group.has_trained(), group.has_sent()), written


def _called(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What it returns; like a script, it may also end by `sys.exit(0)`."""
    process = os.getpid()
    try:
        return function(*args, **kwargs)
    except SystemExit as error:
        if error.code in (None, 0) and os.getpid() == process:
            return None
        raise
    finally:
        if os.getpid() != process:  # the function has forked it, and it ends here
            program.end_fork(sys.exc_info()[1])


def _place_of(function: Callable) -> list[Frame]:
    """Its first line."""
    inner = inspect.unwrap(getattr(function, "func", function))  # of a partial
    code = getattr(inner, "__code__", None)
    return [(code.co_filename, code.co_firstlineno, code.co_name)] if code else []


def watch(session: Session, thread: int) -> None:
    """Send what the rank reports, and where `thread` is, until the notebook's process is gone.

    Then end, children included.
    """
    server = mp.parent_process() or program.server
    assert server is not None, "a rank is forked from the server, which ends with the notebook"
    for tick in itertools.count():
        if wait([server.sentinel], SEND_SECONDS):
            break
        try:
            session.flush()
            if tick % STACK_EVERY == 0:
                session.send(At(_where(thread), time.process_time()))
        except OSError:  # the launch is over, and the notebook ends this process
            wait([server.sentinel])
            break
    try:
        program.kill_other_sessions()
    finally:
        os.killpg(0, signal.SIGKILL)


def _where(thread: int) -> list[Frame]:
    """Where this thread is, in Python or in a call that waits; innermost first.

    Where it waits at the end for another thread, that one's frames come first. A function of its
    own, because a frame that somebody still knows keeps its tensors: memory, and on virtual cores
    programs of another core's shape, which never meet.
    """
    frames = _frames_of(thread)
    if not frames:  # a core's thread, which has returned: the main one ends the process
        thread = threading.main_thread().ident or 0
        frames = _frames_of(thread)
    if program.is_ending(frames):
        others = [one for one in threading.enumerate() if not one.daemon and one.ident != thread]
        frames = [frame for one in others[:1] for frame in _frames_of(one.ident or 0)] + frames
    return frames


def _frames_of(thread: int) -> list[Frame]:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return []
    stack = itertools.islice(traceback.walk_stack(frame), MOST_FRAMES)
    return [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in stack]


def _send_rest(session: Session) -> None:
    """What was printed and reported and is not yet on its way."""
    session.flush()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    program.LIBC.fflush(None)  # what C has printed


def _send_spans(session: Session) -> None:
    try:
        if spans := recorder.take():
            session.send(Spans(spans))
    except RuntimeError as error:  # a device that failed cannot say when its events happened
        print(f"the timeline was lost: {error}", file=sys.stderr)
