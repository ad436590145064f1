"""What would start ranks inside a rank is refused there, because `launch` has started them.

The mains of most public programs start their own: by `mp.spawn`, by torchrun's launcher, or by a
loop of processes that each join a group.
"""

import sys
from functools import partial
from multiprocessing.process import BaseProcess
from types import FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

from ..errors import CourseError, is_own_file
from .pickler import names_in, used_by

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
    raise refusal(fn, nprocs, gets_rank=True)


def launch_agent(config: Any, entrypoint: Any, *_: Any, **__: Any) -> NoReturn:
    raise refusal(entrypoint, config.nproc_per_node, gets_rank=False)


def start(self: BaseProcess) -> None:
    """Start one that joins no group: not forked, it would know nothing of this rank."""
    args = vars(self).get("_args", ())  # Python takes them away at the start
    target = vars(self).get("_target")
    target = target.func if isinstance(target, partial) else target
    seen: set[int] = set()
    if any(_joins(one, seen) for one in (target, type(self).run, *args)):
        raise refusal(target, 0, gets_rank=bool(args))
    _start(self)


def _joins(value: Any, seen: set[int]) -> bool:
    """Whether a function or class of the program's own, or one that it uses, joins a group."""
    if id(value) in seen:
        return False
    seen.add(id(value))
    function = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(value, type):
        used = [*vars(value).values()]
    elif _is_own(function):
        names = names_in(function.__code__)
        if "init_process_group" in names:
            return True
        used = [one for _, one in used_by(function)]
        modules = [one for one in used if isinstance(one, ModuleType)]
        used += [vars(module).get(name) for module in modules for name in names]
    else:
        return False
    return any(_joins(one, seen) for one in used)


def refusal(function: Any, ranks: int, *, gets_rank: bool) -> CourseError:
    """What is raised instead of starting processes that call the function.

    Args:
        ranks: how many; 0 where that is not known, or is the number of GPUs and none is here.
        gets_rank: each gets its rank as the first argument.
    """
    count = f", ranks={ranks}" if ranks > 1 else ""
    if not _is_own(function):  # a library's is around it
        cure = (
            f"write launch(…{count}) with the function that each is to call, and leave out what "
            "has a library start them, as strategy= or nproc_per_node="
        )
    elif gets_rank:
        call = f'lambda *args: {function.__name__}(int(os.environ["RANK"]), *args)'
        cure = f"in the notebook, write launch({call}, …{count})"
    else:
        cure = f"in the notebook, write launch({function.__name__}, …{count})"
    return CourseError(f"ranks cannot start ranks, and launch has started them: {cure}.")


def _is_own(function: Any) -> bool:
    return isinstance(function, FunctionType) and is_own_file(function.__code__.co_filename)
