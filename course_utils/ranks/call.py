"""The call that ranks are to make, checked before one of them starts."""

import contextlib
import functools
import inspect
import os
import reprlib
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..errors import CourseError
from ..pictures.live import LivePlot
from .wire import current

P = ParamSpec("P")
R = TypeVar("R")

# What other launchers call the number of processes.
PROCESSES = ("nprocs", "num_processes", "nproc_per_node", "world_size")
# The first parameters of a function for `mp.spawn` and `xmp.spawn`, which pass it its rank.
RANK = ("rank", "local_rank", "global_rank", "index", "gpu", "gpu_id", "proc_id", "process_id")
SIZE = ("world_size", "size", "nprocs", "n_ranks", "num_ranks", "ngpus_per_node")


def checked(launcher: Callable[P, R]) -> Callable[P, R]:
    """`launcher`, which refuses what ranks cannot be asked to do, and what may mean two things."""
    parameters = inspect.signature(launcher).parameters.values()
    own = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}

    @functools.wraps(launcher)
    def launch(function: Callable, *args: Any, **options: Any) -> R:
        check_place()
        check_live(options.get("live"))
        kwargs = {name: value for name, value in options.items() if name not in own}
        check(function, args, kwargs, own & options.keys(), cores="cores" in own)
        return launcher(function, *args, **options)  # ty: ignore[invalid-argument-type]

    return launch


def check_place() -> None:
    """Raise where no ranks can be started."""
    if sys.platform == "win32":
        raise CourseError(
            "launch needs Linux or macOS. On Windows, open the course in WSL2: the README says how."
        )
    if current() is not None or "TORCHELASTIC_RUN_ID" in os.environ:
        raise CourseError(
            "launch was called inside a rank, of another launch or of torchrun, and ranks cannot "
            "start ranks: call launch in the notebook, and the function itself in the rank."
        )


def check_live(live: Any) -> None:
    if not isinstance(live, LivePlot | None):
        raise CourseError(f'live={live!r}: give a plot of what ranks report, as LivePlot("loss").')


def check(
    function: Callable, args: tuple, kwargs: dict[str, Any], given: set[str], *, cores: bool = False
) -> None:
    """Raise, in the notebook, what ranks would raise of the call.

    Args:
        given: the keywords of the launcher that were passed.
        cores: whether it is `xla.launch`.
    """
    if not callable(function):
        raise CourseError(
            f"launch needs a function, and got {reprlib.repr(function)}. Give the function itself, "
            "and then what it is called with: launch(train, 10), not launch(train(10))."
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function in C, which does not tell
        return
    name = name_of(function)
    parameters = [*signature.parameters]

    for key in sorted(given & _open(function, signature, args)):
        raise CourseError(
            f"{key}= may be meant for launch or for {name}, which both know it. For {name}, write "
            f"launch(partial({name}, {key}=…), …), with functools.partial; for launch, give {name} "
            "its own by position."
        )

    spawned = bool(parameters) and parameters[0] in RANK
    if spawned and args:
        raise CourseError(
            f"{name} would get {reprlib.repr(args[0])} as {parameters[0]}, the same in every rank. "
            f"{_recipe(name, parameters, cores)} If it is meant so, give it by name: "
            f"{parameters[0]}=…"
        )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = ""
        if spawned:
            hint = f" {_recipe(name, parameters, cores)}"
        elif "args" in kwargs:
            hint = f" launch passes arguments on as they are: launch({name}, 1, 2), not args=(…)."
        elif other := [key for key in PROCESSES if key in kwargs]:
            hint = f" launch calls {other[0]}= {'cores' if cores else 'ranks'}=."
        words = f"{name}{signature}"
        raise CourseError(f"{words:.200} cannot be called like this: {error}.{hint}") from None


def name_of(function: Any) -> str:
    """What a reader calls it; of a partial, the function's."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _open(function: Callable, signature: inspect.Signature, args: tuple) -> set[str]:
    """The parameters that neither a position nor a partial fills."""
    filled: set[str] = set()
    if isinstance(function, functools.partial):
        filled = {*function.keywords}
    with contextlib.suppress(TypeError):  # too many, which is said elsewhere
        filled |= signature.bind_partial(*args).arguments.keys()
    return signature.parameters.keys() - filled


def _recipe(name: str, parameters: list[str], cores: bool) -> str:
    """How a function is launched that was written for `mp.spawn`."""
    call = spawned(name, parameters, cores=cores)
    return f"launch passes no {parameters[0]}: write {call}."


def spawned(name: str, parameters: list[str], count: str = "", *, cores: bool = False) -> str:
    """The call to write for such a function; `count`: ", ranks=2"."""
    passed = ["xr.global_ordinal()" if cores else "dist.get_rank()"]
    if len(parameters) > 1 and parameters[1] in SIZE:
        passed.append("xr.world_size()" if cores else "dist.get_world_size()")
    launch = "xla.launch" if cores else "launch"
    if len(parameters) <= len(passed):
        return f"{launch}(lambda: {name}({', '.join(passed)}){count})"
    return f"{launch}(lambda *args: {name}({', '.join(passed)}, *args), …{count})"
