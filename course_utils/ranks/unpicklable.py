"""Names what no other process can have, and the way to it: `train` uses `trainer`, and
`trainer.lock` is a `_thread.lock`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType
from typing import Any

DEEPEST = 6  # steps of the way
MOST_ITEMS = 1_000  # of a container that are looked at
MAGIC = {
    "system",
    "getoutput",
    "run_line_magic",
    "run_cell_magic",
}  # what IPython calls for ! and %
# Of a Queue, Lock, Event or Value of multiprocessing.
SHARED = "which a process shares with its own children alone: give one of multiprocessing.Manager()"
ADVICE = {  # by class
    "DTensor": "of which each rank has a part: give its full_tensor(), or of a model "
    "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))",
    "generator": "which goes on where it is: give list(…) of it",
    "coroutine": "which has not run: give asyncio.run(…) of it",
    "SemLock": SHARED,
    "Arena": SHARED,
}


def way_to(names: dict[str, Any], why_not: Callable[[Any], str]) -> str:
    """A sentence without its full stop; "" where each of these values can be pickled by itself.

    Args:
        why_not: why a value cannot be pickled; "" where it can.
    """
    used_by = ""
    sentence = ""
    inside = iter(names.items())
    for _ in range(DEEPEST):
        found = next(((name, value) for name, value in inside if why_not(value)), None)
        if found is None:
            break
        name, value = found
        if has_magic(value):
            return f"{name} has a line with ! or %, which only the notebook can run"
        if isinstance(value, FunctionType | MethodType | partial):
            sentence = f"{used_by} uses {name}" if used_by else f"{name}: {why_not(value)}"
            used_by = name
        else:
            reason = f"{name} is a {_described(value, why_not(value))}"
            root = name.split(".")[0].split("[")[0]
            sentence = f"{used_by} uses {root}, and {reason}" if root != used_by != "" else reason
        inside = _inside(name, value)
    return sentence


def has_magic(value: Any) -> bool:
    """Whether it is a function with a line that begins with ! or %."""
    if not isinstance(value, FunctionType):
        return False
    names = names_in(value.__code__)
    return "get_ipython" in names and bool(MAGIC & names)


def _described(value: Any, why_not: str) -> str:
    """Its class, and what is to be known of that."""
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    if more := ADVICE.get(kind.__name__):
        return f"{name}, {more}"
    return name if kind.__name__ in why_not else f"{name} ({why_not})"


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, by the name that Python has for it."""
    if isinstance(value, MethodType):
        yield f"{name}.__self__", value.__self__
    elif isinstance(value, partial):
        yield f"{name}.func", value.func
        yield from ((f"{name}.args[{i}]", item) for i, item in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((free, cell.cell_contents) for free, cell in cells)
        for used in sorted(names_in(value.__code__)):
            if used in value.__globals__:
                yield used, value.__globals__[used]
        yield f"{name}.__defaults__", value.__defaults__
        yield f"{name}.__kwdefaults__", value.__kwdefaults__
    elif isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", item) for key, item in islice(value.items(), MOST_ITEMS))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{name}[{i}]", item) for i, item in enumerate(islice(value, MOST_ITEMS)))
    elif hasattr(value, "__dict__"):
        yield from ((f"{name}.{key}", item) for key, item in vars(value).items())


def names_in(code: CodeType) -> set[str]:
    """The names that a function looks up, also in the functions that it defines."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names}.union(*map(names_in, inner))
