"""The call of the function in the script: what the command line can change, and expressions for the rest."""

from __future__ import annotations

import ast
import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ground.errors import CourseError
from .collect import Collector
from .inlined import public_name, stateful
from .literal import NoLiteral, literal
from .sources import Namespace


@dataclass(frozen=True)
class Argument:
    """One argument of the command line."""

    name: str
    value: Any
    kind: type

    @property
    def declared(self) -> str:
        """What `add_argument` gets."""
        flag = json.dumps(f"--{self.name.replace('_', '-').strip('-')}")
        how = "action=argparse.BooleanOptionalAction" if self.kind is bool else f"type={self.kind.__name__}"
        return f"{flag}, {how}, default={literal(self.value)}"

    @property
    def read(self) -> str:
        """How the script reads it."""
        return f"args.{self.name.strip('_')}"


def entry(function: Callable, space: Namespace) -> str:
    """The global name of the function to export."""
    names = [function.__name__] if hasattr(function, "__name__") else []
    names += [name for name in space.values if not name.startswith("_")]
    for name in names:
        if space.values.get(name) is function:
            return name
    kind = "a lambda" if getattr(function, "__name__", "") == "<lambda>" else f"{function!r:.60}"
    raise CourseError(f"export needs a function that a cell defines by def at its left edge, and got {kind}.")


def written(
    collector: Collector, space: Namespace, function: Callable, args: tuple, kwargs: dict
) -> tuple[str, list[Argument]]:
    """`train(digits(), args.epochs, batch=args.batch)`, and the arguments in it."""
    name = entry(function, space)
    collector.need(space, name, "launch.export")
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise CourseError(f"export({name}, …): {error}; give the arguments that launch({name}, …) gets") from None
    parts, arguments, positional = [], [], len(args)
    for parameter in signature.parameters.values():
        value = given.get(parameter.name, parameter.default)
        positional = -1 if parameter.kind is parameter.KEYWORD_ONLY else positional - 1
        if parameter.kind is parameter.VAR_POSITIONAL:
            more = given.get(parameter.name, ())
            parts += [_expression(collector, space, each, f"*{parameter.name}") for each in more]
        elif parameter.kind is parameter.VAR_KEYWORD:
            more = given.get(parameter.name, {})
            parts += [f"{key}={_expression(collector, space, each, key)}" for key, each in more.items()]
        elif type(value) in (bool, int, float, str):
            wide = float if parameter.annotation in (float, "float") else type(value)
            arguments.append(Argument(parameter.name, value, wide))
            bare = positional >= 0 or parameter.kind is parameter.POSITIONAL_ONLY
            parts.append(arguments[-1].read if bare else f"{parameter.name}={arguments[-1].read}")
        elif parameter.name in given:
            text = _expression(collector, space, value, parameter.name)
            parts.append(text if positional >= 0 else f"{parameter.name}={text}")
    return f"{name}({', '.join(parts)})", arguments


def _expression(collector: Collector, space: Namespace, value: Any, argument: str) -> str:
    """An expression for an argument: a literal, a name of the notebook, or what the name was assigned."""
    try:
        return literal(value)
    except NoLiteral:
        pass
    if isinstance(value, functools.partial):
        inner = [_expression(collector, space, each, argument) for each in (value.func, *value.args)]
        inner += [f"{k}={_expression(collector, space, v, argument)}" for k, v in value.keywords.items()]
        collector.imported("functools", "partial", "partial")
        collector.given.add("partial")
        return f"partial({', '.join(inner)})"
    names = [name for name, other in space.values.items() if other is value and not name.startswith("_")]
    if not names and (public := public_name(value)):
        collector.imported(*public, public[1])
        collector.given.add(public[1])
        return public[1]
    if not names:
        kind = type(value).__name__
        raise CourseError(
            f"argument {argument} (a {kind}) cannot be exported: no name of the notebook stands for it. "
            f"What to do: write name = … in a cell, and give {argument}=name; or make it inside the function."
        )
    if not isinstance(value, type) and not inspect.isroutine(value) and (why := stateful(value)):
        raise CourseError(
            f"argument {argument} ({names[0]}) cannot be exported: it is {why}. "
            "What to do: make it inside the function, from numbers, names and paths."
        )
    bound = space.binding(names[-1])
    if bound and isinstance(bound.node, ast.Assign) and (space.name, names[-1]) not in collector.known:
        text = ast.get_source_segment(bound.source.text, bound.node.value)
        if isinstance(bound.node.targets[0], ast.Name) and "\n" not in text and not inspect.isroutine(value):
            return text
    return names[-1]
