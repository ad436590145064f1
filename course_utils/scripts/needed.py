"""What a notebook's function needs to run elsewhere: code as text, values by value.

Imports and definitions are those of the cells. A plain value is written as it is now. Any other
comes from its statement, if that makes the same value in a process of its own; else from a file.
"""

import builtins
import functools
import io
import re
import sys
import types
from contextlib import suppress
from typing import Any

import torch

from ..errors import CourseError
from ..kernel_values import VALUES
from ..ranks.pickler import is_of_each
from .cells import Statement
from .copies import COURSE, Copies, imported, refuse
from .facts import Part, facts, is_definition, is_importable, is_shared, parts_of, references
from .files import MARK, Files
from .literals import SCALARS, assigns, import_lines, literal
from .process import environment_variables, logger_levels, sets_the_process, torch_settings
from .trial import Failure, Piece, tried

LOAD, SETTINGS, LEVELS = "the values", "the settings", "levels"  # pieces that are no name's
CODE = (types.FunctionType, types.BuiltinFunctionType, type)
FIXED = (".__bases__", ".__class__", ".__code__", ".__slots__")


class Needed:
    """What a call needs, each piece after those that it uses.

    Args:
        namespace: of the notebook.
        cells: their statements.
        saved: names of the values that come from a file; more may be added.
        changed: parts of definitions that are not what their statements make; more may be added.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        cells: list[Statement],
        saved: set[str],
        changed: set[Part],
    ) -> None:
        self.namespace, self.statements = namespace, cells
        self.saved, self.changed = saved, changed
        self.used_by: dict[str, str] = {}  # names of the notebook's
        self.imports: dict[str, str] = {}  # by the name that each binds
        self.pieces: dict[str, Piece] = {}  # by a statement's text, or by the name that they bind
        self.made: dict[str, str] = {}  # the key of the piece that makes a name
        self.begun: set[str] = set()  # names whose statements are not yet written
        self.postponed: list[tuple[Statement, str]] = []  # until those are that they need
        self.bound: set[str] = set()  # by the statements that are written
        self.copies = Copies()
        self.environment = [*environment_variables(cells)]  # statements that set variables
        self._set_process()

    def _set_process(self) -> None:
        """What a launch takes along of the process beside values."""
        for name, value in self.namespace.items():
            if type(value).__module__ == "__future__":
                self.imports[name] = f"from __future__ import {name}"
        if self.environment:
            self.imports["os"] = "import os"
        if settings := [*torch_settings()]:
            self.imports["torch"] = "import torch"
            self.pieces[SETTINGS] = Piece("\n".join(settings))
        for statement in self.statements:
            if sets_the_process(statement):
                self.pieces.pop(statement.text, None)  # of the same ones the last counts
                self._take(statement, "the script")
        if levels := [*logger_levels(self.statements)]:
            self.imports["logging"] = "import logging"
            self.pieces[LEVELS] = Piece("\n".join(levels))

    def expression(self, value: Any) -> str:
        """What stands for it in the script: a literal, a name, or a method of one."""
        if isinstance(value, SCALARS) and (text := literal(value)):
            return text
        own = "argument"
        if isinstance(value, (*CODE, types.MethodType, types.ModuleType)):
            own = value.__name__
        names = [name for name, bound in self.namespace.items() if bound is value]
        if own in names:
            name = own
        elif names:
            name = min(names, key=lambda name: name[0] == "_")
        elif text := literal(value):
            return text
        elif isinstance(value, types.MethodType) and getattr(value.__self__, own, None) == value:
            return f"{self.expression(value.__self__)}.{own}"
        elif isinstance(value, (*CODE, types.MethodType)) and not is_importable(value):
            raise CourseError(
                f"export knows no name for {value!r:.60}: write name = … at the top of a cell, and "
                "give the name."
            )
        else:
            name = own
            while name in self.namespace or hasattr(builtins, name):
                name += "_"
            self.namespace[name] = value
        self.add(name, "the call")
        return name

    def add(self, name: str, used_by: str) -> None:
        """Take what makes `name` what it is, after all that this uses."""
        if name == "get_ipython":
            refuse(name, used_by, "a line that begins with % or ! runs in a notebook only")
        if name not in self.namespace or name in self.used_by:
            return
        value = self.namespace[name]
        statement = next((one for one in reversed(self.statements) if name in one.binds), None)
        # Python's, or what IPython has in its place; `__name__` and the like.
        is_pythons = hasattr(builtins, name) and not is_importable(value)
        is_modules = re.fullmatch(r"__\w+__", name) is not None
        if statement is None and (is_pythons or is_modules):
            return
        self.used_by[name] = used_by
        if name not in self.saved and self._import(name, value):
            return
        if is_definition(value):
            if statement is None:
                why = "no statement at the top of a cell makes it; write one, and run it"
                refuse(name, used_by, why)
            self._take(statement, name)
        elif name not in self.saved and (text := literal(value)):
            is_written = statement is not None and assigns(statement.node, text)
            self.made[name] = name
            self.pieces[name] = Piece(statement.text if is_written else f"{name} = {text}")
        elif name not in self.saved and statement is not None and name not in statement.uses:
            try:
                self._take(statement, name)
            except CourseError:  # what it uses cannot leave; its value can
                self.saved.add(name)
        else:
            self.saved.add(name)
            self._load(name)

    def _take(self, statement: Statement, name: str) -> None:
        """Write it after what it uses; where two use each other, after what it needs at once."""
        self.begun.add(name)
        for used in sorted(statement.uses):
            self.add(used, name)
        if statement.needs & (self.begun - {name}):
            self.postponed.append((statement, name))
        else:
            self._write(statement, name)

    def _write(self, statement: Statement, name: str) -> None:
        text = self.copies.rewritten(statement.text, name)
        self.pieces.setdefault(statement.text, Piece(text, statement.line))
        self.begun.discard(name)
        self.bound |= statement.binds
        if name in self.namespace:
            self.made[name] = statement.text
            self._change(name, self.namespace[name])
        waiting, self.postponed = self.postponed, []
        for one in waiting:
            self._take(*one)

    def _change(self, name: str, value: Any) -> None:
        """Write what has been changed of a definition since its statement ran."""
        parts = parts_of(value) if is_definition(value) else {}
        for part in sorted(self.changed):
            if part.name == name:
                place = name + part.place
                text = f"del {place}"
                if part.place in parts:
                    text = f"{place} = {self.expression(parts[part.place])}"
                self.pieces[place] = Piece(text)

    def _load(self, name: str) -> None:
        if LOAD not in self.pieces:
            for saved in sorted(self.saved):
                try:
                    self._take_references(saved)
                except CourseError:
                    if saved == name:  # another may not be needed any more
                        raise
            load = f"{COURSE}.kernel_values", "load_values", "_load_values"
            self.imports["_load_values"] = self.copies.line(*load, "the script")
            self.pieces[LOAD] = Piece("_kernel_values = _load_values(__file__, globals())")
        self.made[name] = name
        self.pieces[name] = Piece(f'{name} = _kernel_values["{name}"]')

    def _take_references(self, name: str) -> None:
        """What the script has to have before it opens this value."""
        needs = references(self.namespace[name], self.namespace)
        for used in sorted(needs.names):
            self.add(used, name)
        for module in sorted(needs.modules):
            self.copies.bring(module, None, name)

    def _import(self, name: str, value: Any) -> bool:
        """Whether imports make it, which are taken: those of the cells, or else by its place."""
        found = [
            place
            for statement in self.statements
            for place in imported(statement.node)
            if place[2].partition(".")[0] == name and _gives(*place, value)
        ]
        if not found and isinstance(value, types.ModuleType):
            found = [(value.__name__, None, name)]
        elif not found and isinstance(value, CODE) and is_importable(value):
            found = [(value.__module__, value.__name__, name)]
        for module, attribute, known_as in found:
            line = self.copies.line(module, attribute, known_as, self.used_by[name])
            self.imports[known_as] = line
        if found and not isinstance(value, (*CODE, types.ModuleType)) and not is_of_each(value):
            described = facts(self.namespace, [name]).parts[Part(name, "")]
            if described is not None:  # a constant, which may be another one by now
                self.made[name] = name
        return bool(found)

    def files(self, script: str) -> Files:
        """What lies beside the script of this name."""
        file = {f"{script}{VALUES}": self._values_file} if self._values_file else {}
        return {**self.copies.files, **file}

    @functools.cached_property
    def _values_file(self) -> bytes:
        """The values that come from it, once all is taken; nothing where there are none."""
        values = {name: self.namespace[name] for name in self.made if name in self.saved}
        return _saved(values | {"made by": MARK}) if values else b""

    def _can_be_saved(self, values: set[str]) -> bool:
        """Whether the file can be made; else `saved` has more: what uses a value that cannot."""
        with suppress(Exception):  # whatever an object says when it is asked for its state
            return self._values_file is not None
        for name in self.made.keys() & self.saved:
            user = self.used_by[name]
            try:
                _saved(self.namespace[name])
            except Exception as error:
                if user not in values:
                    why = f"it cannot be saved ({type(error).__name__}: {error})"
                    refuse(name, user, f"{why}; make it in the function")
                self.saved.add(user)  # which then does not need it
                return False
        return True

    def agrees(self, called: str) -> bool:
        """Whether the pieces make what the kernel has; else `saved` and `changed` have more now."""
        for one in self.postponed:  # each needs another: the trial says how it fails
            self._write(*one)
        values = {name for name in self.made if not is_definition(self.namespace[name])}
        if not self._can_be_saved(values):
            return False
        imports = Piece(import_lines(self.imports, self.environment))
        pieces = {"the imports": imports} | self.pieces
        made = tried(pieces, self.files("script"), [*self.made], called)
        if isinstance(made, Failure):
            names = {name for name, key in self.made.items() if key == made.key}
            if not names or names & self.saved or names - values:
                raise CourseError(
                    f"{called} cannot be exported: {made.words}. Do this in the function."
                )
            self.saved |= names
            return False
        ours = facts(self.namespace, [*self.made])
        differ = [
            part
            for part in ours.parts | made.parts
            if ours.parts.get(part) is None or ours.parts.get(part) != made.parts.get(part)
        ]
        saved = {*self.saved}
        for part in differ:
            self._correct(part, is_saved=part.name in saved)
        if differ or ours.together == made.together:
            return not differ
        alone = (*SCALARS, *CODE)
        shared = {name for name in values if not isinstance(self.namespace[name], alone)}
        if not shared <= self.saved:
            self.saved |= shared  # in one file they stay the same objects
            return False
        parts = [
            Part(name, place)
            for name in sorted(self.made.keys() - values)
            for place, value in parts_of(self.namespace[name]).items()
            if is_shared(value)
        ]
        writable = [part for part in parts if self._can_be_written(part)]
        for part in writable:  # it may be a name's object, or no longer
            self._correct(part, is_saved=False)
        return not writable

    def _correct(self, part: Part, *, is_saved: bool) -> None:
        name, place = part
        if not place and not is_saved:
            self.saved.add(name)
            for statement in self.statements:  # one that stays would bind it again
                if statement.text in self.pieces and name in statement.binds:
                    self.saved |= statement.binds & self.made.keys()
        elif place and part not in self.changed and self._can_be_written(part):
            self.changed.add(part)
        else:
            used_by = self.used_by[name]
            why = f"{name}{place} is not what its statement makes; put there what changed it"
            refuse(name, used_by, f"{why}, and run it")

    def _can_be_written(self, part: Part) -> bool:
        """Whether `name.place = value` sets it, and there is an expression of the value."""
        if "'s " in part.place or part.place.endswith(FIXED):
            return False
        value = parts_of(self.namespace[part.name]).get(part.place)
        is_code = hasattr(value, "__get__")  # a function, a property, a method of the class
        return not is_code or any(bound is value for bound in self.namespace.values())


def _saved(value: Any) -> bytes:
    """In torch's format, with what cells define by its name."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _gives(module: str, attribute: str | None, known_as: str, value: Any) -> bool:
    """Whether this import makes the name stand for this value."""
    found = sys.modules.get(module if known_as != module else module.partition(".")[0])
    if attribute is not None:
        found = getattr(found, attribute, None)
    return found is value
