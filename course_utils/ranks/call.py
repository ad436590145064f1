"""The call that ranks are to make, checked before one of them starts."""

import functools
import inspect
import operator
import os
import reprlib
import sys
import types
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ParamSpec, TypeVar

from ..errors import CourseError, in_words
from ..pictures.live import LivePlot
from .wire import current

YEAR = 3e7  # seconds; torch counts a timeout in milliseconds, and cannot count all of them
P = ParamSpec("P")
R = TypeVar("R")

# The first parameters of a function for `mp.spawn` and `xmp.spawn`, which pass it its rank.
RANK = ("rank", "local_rank", "global_rank", "index", "gpu", "gpu_id", "proc_id", "process_id")


def checked(launcher: Callable[P, R]) -> Callable[P, R]:
    """`launcher`, which refuses what ranks cannot be asked to do, and what may mean two things."""
    parameters = inspect.signature(launcher).parameters.values()
    own = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]

    @functools.wraps(launcher)
    def launch(function: Callable, /, *args: Any, **options: Any) -> R:
        try:
            check_place()
            check_live(options.get("live"))
            kwargs = {name: value for name, value in options.items() if name not in own}
            check(function, args, kwargs, options.keys() & own, own)
            if "time_limit" in options:
                options["time_limit"] = seconds(options["time_limit"])
            return launcher(function, *args, **options)  # ty: ignore[invalid-argument-type]
        except KeyboardInterrupt as error:
            # IPython's hook; scripts see the usual traceback.
            words = f"interrupted; every {own[0].removesuffix('s')} was ended."
            error._render_traceback_ = functools.partial(in_words, error, words)  # ty: ignore
            raise

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


def whole(count: Any) -> int:
    """A whole number of Python, NumPy or torch; 0 for what is none."""
    try:
        return 0 if isinstance(count, bool) else operator.index(count)
    except TypeError:
        return 0


def seconds(limit: Any) -> float | None:
    """A time limit in seconds; None where there is none."""
    if limit is None:
        return None
    if isinstance(limit, Real) and not isinstance(limit, bool) and limit > 0:
        return None if limit > YEAR else float(limit)
    raise CourseError(
        f"time_limit={reprlib.repr(limit)}: give seconds, for example time_limit=600, or "
        "None for no limit."
    )


def check(
    function: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    given: set[str],
    own: Sequence[str] = ("ranks",),
) -> None:
    """Raise, in the notebook, what ranks would raise of the call.

    Args:
        given: the keywords of the launcher that were passed.
        own: all that it has, first "ranks", or "cores" of `xla.launch`.
    """
    if not callable(function):
        raise CourseError(
            f"launch needs a function, and got {reprlib.repr(function)}. Give the function itself, "
            "and then what it is called with: launch(train, 10), not launch(train(10))."
        )
    name = name_of(function)
    launch, rank = "launch", 'int(os.environ["RANK"])'
    if own[0] == "cores":
        launch, rank = "xla.launch", "xr.global_ordinal()"
    if inspect.iscoroutinefunction(function):
        raise CourseError(
            f"{name} is async, and a call of it runs nothing yet: give a function that runs it, "
            f"{launch}(lambda: asyncio.run({name}(…)))."
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function in C, which does not tell
        return
    parameters = signature.parameters
    positional = [name for name, one in parameters.items() if one.kind <= one.POSITIONAL_OR_KEYWORD]
    first = positional[0] if positional else ""

    filled = {*positional[: len(args)], *getattr(function, "keywords", ())}  # these of a partial
    for key in sorted(given & parameters.keys() - filled):
        raise CourseError(
            f"{key}= may be meant for launch or for {name}, which both know it. For {name}, write "
            f"launch(partial({name}, {key}=…), …), with functools.partial; for launch, give {name} "
            "its own by position."
        )

    recipe = (
        f"launch passes no rank: if {first} is meant as one, write "
        f"{launch}(lambda *args: {name}({rank}, *args), …)."
    )
    if args and first in RANK:
        raise CourseError(
            f"{name} would get {reprlib.repr(args[0])} as {first}, the same in every rank. "
            f"{recipe} If it is meant so, give it by name: {first}=…"
        )
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = ""
        is_missing = str(error).startswith("missing")
        if kwargs.keys() - parameters.keys() or tuple in map(type, args) or not is_missing:
            hint = (
                f" Give arguments as they are, in no tuple, and the number of {own[0]} by name: "
                f"{launch}({name}, 1, 2, {own[0]}=4). Its own are {'=, '.join(own)}=."
            )
        elif first not in ("", "self", *kwargs):
            hint = f" {recipe}"
        called = f"{name}{signature}"
        raise CourseError(f"{called:.200} cannot be called like this: {error}.{hint}") from None


def name_of(function: Any) -> str:
    """What a reader calls it; of a partial, the function's."""
    if isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return f"….{name}" if isinstance(function, types.MethodType) else name
