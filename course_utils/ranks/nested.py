"""What would start ranks inside a rank is refused there, because `launch` has started them.

The mains of most public programs start their own: by `mp.spawn`, by torchrun's launcher, or by a
loop of processes that each join a group.
"""

import contextlib
import inspect
import multiprocessing as mp
import os
import sys
import traceback
from multiprocessing.process import BaseProcess
from types import FunctionType
from typing import Any, NoReturn

from ..errors import CourseError, is_own_file
from . import wire
from .failures import raised_by
from .unpicklable import names_in

# What the second parameter of a function for `mp.spawn` is called, if it is the number of ranks.
SIZE = ("world_size", "size", "nprocs", "n_ranks", "num_ranks", "ngpus_per_node")
_start = BaseProcess.start


def refuse_launchers() -> None:
    """Let torch's launchers raise, and so all that is built on them. Where a cell or a module holds
    one, a rank looks it up by its name.
    """
    from torch import multiprocessing
    from torch.distributed import launcher
    from torch.distributed.launcher import api

    for module in (multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        vars(module).update(start_processes=start_processes)
    for module in (launcher, api):
        vars(module).update(launch_agent=launch_agent)
    BaseProcess.start = start


def start_processes(fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> NoReturn:
    raise refusal(fn, len(args) + 1, nprocs)


def launch_agent(config: Any, entrypoint: Any, *_: Any, **__: Any) -> NoReturn:
    raise refusal(entrypoint, 0, config.nproc_per_node)


def start(self: BaseProcess) -> None:
    """Start one that names no group to join: not forked, it would know nothing of this rank."""
    target = vars(self)["_target"]
    if _is_own(target) and "init_process_group" in names_in(target.__code__):
        raise of_process(self)
    _start(self)


def end_launch() -> NoReturn:
    """End the launch, from a process that a rank has forked and that is about to join a group."""
    session = wire._process
    assert session is not None, "it was forked from a rank"
    failure = raised_by(of_process(mp.current_process()))
    stack = [(one.filename, one.lineno or 0, one.name) for one in traceback.extract_stack()]
    with contextlib.suppress(OSError):  # the launch is over: another process has said it
        session.connection.send((session.rank, failure._replace(frames=stack)))
    os._exit(1)


def of_process(process: Any) -> CourseError:
    """The refusal of one of several processes, to each of which its rank is passed first."""
    return refusal(process._target, len(process._args), 0)


def refusal(function: Any, passed: int, ranks: int) -> CourseError:
    """What is raised instead of starting `ranks` processes, or an unknown number, 0, that call the
    function with so many arguments, the rank among them; 0: without their rank.
    """
    count = f", ranks={ranks}" if ranks > 1 else ""  # else there are no GPUs to count
    call = f"launch(…{count}) with the function that each is to call"  # a library's is around it
    if _is_own(function) and passed:
        call = _with_a_rank(function, passed, count)
    elif _is_own(function):
        call = f"launch({function.__name__}, …{count})"
    return CourseError(
        f"ranks cannot start ranks, and launch has started them: in the notebook, write {call}."
    )


def _with_a_rank(function: FunctionType, passed: int, count: str) -> str:
    """The call to write for a function that gets its rank first."""
    parameters = [*inspect.signature(function).parameters][:passed]
    numbers = "dist.get_rank()"
    rest = parameters[1:]
    if rest and rest[0] in SIZE:
        numbers += ", dist.get_world_size()"
        rest = rest[1:]
    if rest:
        return f"launch(lambda *args: {function.__name__}({numbers}, *args), …{count})"
    return f"launch(lambda: {function.__name__}({numbers}){count})"


def _is_own(function: Any) -> bool:
    return isinstance(function, FunctionType) and is_own_file(function.__code__.co_filename)
