"""The call of the function in the script: options of the command line, and expressions for the rest."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from ..errors import CourseError
from .collect import Collector, Found
from .literal import WIDTH, NoLiteral, literal
from .origin import public_name, stateful
from .sources import Namespace

LOCALS = {"args", "backend", "device", "result"}  # mean something else in the script's main


class Call:
    """`train(digits(), args.epochs, batch=args.batch)`."""

    def __init__(self, collector: Collector, space: Namespace, function: Callable, args: tuple, kwargs: dict) -> None:
        self.collector, self.space = collector, space
        self.options: list[str] = []  # what `add_argument` gets
        self.given: dict[str, Found] = {}  # names that it uses, and the notebook has otherwise or not
        self.name = next(iter(self._names(function)), None)
        if self.name is None:
            kind = "a lambda" if getattr(function, "__name__", "") == "<lambda>" else f"{function!r:.60}"
            raise CourseError(f"export needs a function that a cell defines by def at its left edge, and got {kind}.")
        self.function, _ = self.given[self.name] = collector.need(space, self.name, "launch.export")
        signature = inspect.signature(function)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise CourseError(
                f"export({self.name}, …): {error}; give the arguments that launch({self.name}, …) gets"
            ) from None
        for name, parameter in signature.parameters.items():
            value = bound.arguments.get(name, parameter.default)
            if parameter.kind is parameter.VAR_POSITIONAL:
                bound.arguments[name] = [self._expression(one, f"*{name}") for one in bound.arguments.get(name, ())]
            elif parameter.kind is parameter.VAR_KEYWORD:
                more = bound.arguments.get(name, {})
                bound.arguments[name] = {key: self._expression(one, key) for key, one in more.items()}
            elif type(value) in (bool, int, float, str):
                bound.arguments[name] = self._option(name, value, parameter.annotation in (float, "float"))
            elif name in bound.arguments:
                bound.arguments[name] = self._expression(value, name)
        self.parts = [*bound.args, *(f"{name}={text}" for name, text in bound.kwargs.items())]

    @property
    def text(self) -> str:
        """On one line where there is room, else as ruff writes it."""
        line = f"{self.name}({', '.join(self.parts)})"
        rows = textwrap.indent("".join(f"{one},\n" for one in self.parts), "    ")
        short = "\n" not in line and len(line) < WIDTH - len("    result = ")
        return line if short else f"{self.name}(\n{rows})"

    def _option(self, name: str, value: Any, wide: bool) -> str:
        name = name.strip("_")
        how = f"type={'float' if wide else type(value).__name__}"
        how = "action=argparse.BooleanOptionalAction" if type(value) is bool else how
        self.options.append(f'"--{name.replace("_", "-")}", {how}, default={literal(value)}')
        return f"args.{name}"

    def _names(self, value: Any) -> list[str]:
        """Names of the notebook that stand for it, its own the first; IPython's begin with _."""
        own = getattr(value, "__name__", None)
        found = [name for name, other in self.space.values.items() if other is value and name not in LOCALS]
        return sorted((name for name in found if name == own or name[0] != "_"), key=lambda name: name != own)

    def _expression(self, value: Any, argument: str) -> str:
        """An expression for an argument: a literal, a name of the notebook, or what the name was assigned."""
        try:
            text = literal(value)
        except NoLiteral:
            pass
        else:
            if "torch." in text:
                self.given["torch"] = self.collector.imported("torch", None, "torch", argument)
            return text
        if isinstance(value, functools.partial):
            inner = [self._expression(one, argument) for one in (value.func, *value.args)]
            inner += [f"{name}={self._expression(one, argument)}" for name, one in value.keywords.items()]
            self.given["partial"] = self.collector.imported("functools", "partial", "partial", argument)
            return f"partial({', '.join(inner)})"
        names = self._names(value)
        if not names and (public := public_name(value)):
            self.given[public[1]] = self.collector.imported(*public, public[1], argument)
            return public[1]
        if not names:
            raise CourseError(
                f"argument {argument} (a {type(value).__name__}) cannot be exported: no name of the notebook stands "
                f"for it. What to do: write name = … in a cell, and give {argument}=name; or make it in the function."
            )
        routine = isinstance(value, type) or inspect.isroutine(value)
        if not routine and (why := stateful(value)):
            raise CourseError(
                f"argument {argument} ({names[0]}) cannot be exported: it is {why}. "
                "What to do: make it inside the function, from numbers, names and paths."
            )
        made = self.space.binding(names[-1])
        if made and isinstance(made.node, ast.Assign) and not routine and made.names == {names[-1]}:
            text = ast.get_source_segment(made.source.text, made.node.value)
            uses = {one.id for one in ast.walk(made.node.value) if isinstance(one, ast.Name)}
            if "\n" not in text and not uses & LOCALS and (self.space.name, names[-1]) not in self.collector.known:
                return text
        return names[-1]
