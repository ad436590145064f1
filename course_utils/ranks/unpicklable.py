"""Names what no other process can have, and the way to it: `train` uses `trainer`, and
`trainer.lock` is a `_thread.lock`.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from types import CodeType, FunctionType, MethodType
from typing import Any

DEEPEST = 6  # steps of the way
MOST_ITEMS = 1_000  # of a container that are looked at
ADVICE = {  # by class
    "DTensor": "of which each rank has a part: give its full_tensor(), or of a model "
    "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))",
    "generator": "which goes on where it is: give list(…) of it",
}


def way_to(names: dict[str, Any], pickles: Callable[[Any], bool]) -> str:
    """A sentence without its full stop; "" where each of these values can be pickled by itself."""
    used_by = ""
    sentence = ""
    inside = iter(names.items())
    for _ in range(DEEPEST):
        found = next(((name, value) for name, value in inside if not pickles(value)), None)
        if found is None:
            break
        name, value = found
        if is_shell(value):
            return f"{used_by} has a line with ! or %, which only the notebook can run"
        if isinstance(value, FunctionType | MethodType):
            sentence = f"{used_by} uses {name}" if used_by else name
            used_by = name
        else:
            reason = f"{name} is a {_class(value)}"
            sentence = f"{used_by} uses {_root(name)}, and {reason}" if used_by else reason
            sentence += (
                f", {ADVICE[type(value).__name__]}" if type(value).__name__ in ADVICE else ""
            )
        inside = _inside(name, value)
    return sentence


def is_shell(value: Any) -> bool:
    """Whether it belongs to IPython, which makes calls of itself from lines with ! or %."""
    return isinstance(value, MethodType) and "InteractiveShell" in type(value.__self__).__name__


def _class(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _root(name: str) -> str:
    return name.split(".")[0].split("[")[0]


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, by the name that Python has for it."""
    if isinstance(value, MethodType):
        yield f"{name}.__self__", value.__self__
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((free, cell.cell_contents) for free, cell in cells)
        for used in sorted(_names(value.__code__)):
            if used in value.__globals__:
                yield used, value.__globals__[used]
    elif isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", item) for key, item in islice(value.items(), MOST_ITEMS))
    elif isinstance(value, list | tuple):
        yield from ((f"{name}[{i}]", item) for i, item in enumerate(value[:MOST_ITEMS]))
    elif hasattr(value, "__dict__"):
        yield from ((f"{name}.{key}", item) for key, item in vars(value).items())


def _names(code: CodeType) -> set[str]:
    """The names that a function looks up, also in the functions that it defines."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names}.union(*map(_names, inner))
