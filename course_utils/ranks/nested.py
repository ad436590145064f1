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
from functools import partial
from multiprocessing.process import BaseProcess
from types import FunctionType, MethodType
from typing import Any, NoReturn

from ..errors import CourseError, is_own_file
from . import wire
from .failures import raised_by
from .pickler import names_in

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
    """Start one that joins no group: not forked, it would know nothing of this rank."""
    target = vars(self).get("_target")  # Python takes it away at the start
    if _joins(target, set()) or _joins(type(self).run, set()):
        raise of_process(self)
    _start(self)


def _joins(value: Any, seen: set[int]) -> bool:
    """Whether a function or class of the program's own, or one that it uses, joins a group."""
    if isinstance(value, partial):
        value = value.func
    if isinstance(value, MethodType):
        value = value.__func__
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, type):
        return any(_joins(one, seen) for one in vars(value).values())
    if not _is_own(value):
        return False
    names = names_in(value.__code__)
    used = (value.__globals__.get(name) for name in names)
    return "init_process_group" in names or any(_joins(one, seen) for one in used)


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
    target = vars(process).get("_target")
    return refusal(target, len(process._args) + len(process._kwargs), 0)


def refusal(function: Any, passed: int, ranks: int) -> CourseError:
    """What is raised instead of starting `ranks` processes, or an unknown number, 0, that call the
    function with so many arguments, the rank among them; 0: without their rank.
    """
    count = f", ranks={ranks}" if ranks > 1 else ""  # else there are no GPUs to count
    if not _is_own(function):  # a library's is around it
        cure = (
            f"write launch(…{count}) with the function that each is to call, and leave out what "
            "has a library start them, as strategy= or nproc_per_node="
        )
    elif passed:
        cure = f"in the notebook, write {_with_a_rank(function, passed, count)}"
    else:
        cure = f"in the notebook, write launch({function.__name__}, …{count})"
    return CourseError(f"ranks cannot start ranks, and launch has started them: {cure}.")


def _with_a_rank(function: FunctionType, passed: int, count: str) -> str:
    """The call to write for a function that gets its rank first."""
    import torch.distributed

    parameters = [*inspect.signature(function).parameters][:passed]
    numbers, size = "dist.get_rank()", "dist.get_world_size()"
    if not torch.distributed.is_initialized():  # init_group=False
        numbers, size = 'int(os.environ["RANK"])', 'int(os.environ["WORLD_SIZE"])'
    rest = parameters[1:]
    if rest and rest[0] in SIZE:
        numbers += f", {size}"
        rest = rest[1:]
    if rest:
        return f"launch(lambda *args: {function.__name__}({numbers}, *args), …{count})"
    return f"launch(lambda: {function.__name__}({numbers}){count})"


def _is_own(function: Any) -> bool:
    return isinstance(function, FunctionType) and is_own_file(function.__code__.co_filename)
