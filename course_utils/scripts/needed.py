"""What a notebook's function needs to run elsewhere: statements of cells, imports, files."""

import ast
import builtins
import enum
import json
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NoReturn

from ..errors import CourseError, RankError
from ..machine import rank_accelerator
from ..ranks import launch
from .cells import Statement, history, of_the_process
from .fingerprint import ONLY_HERE, Fingerprint, place_of
from .modules import Modules, imported, is_installed, is_of_course, refuse

MOST_SECONDS = 120  # that the statements may take, all together
SCALARS = (type(None), bool, int, float, bytes)
CONTAINERS = (tuple, list, dict, set)


class Needed:
    """What a call needs: statements, each after those that it uses; imports; files."""

    def __init__(self, namespace: dict[str, Any], changed: set[str]) -> None:
        """changed: names of which the statements that changed their values are needed, too."""
        self.namespace = {"os": os} | namespace  # which the Python of %env uses
        self.bindings, self.changes = history(namespace)
        self.changed = changed
        self.joins = False  # the process group by itself
        self.used_by: dict[str, str] = {}  # names of the notebook's, in the order of the script
        self.statements: dict[object, str] = {}  # in this order
        self.imports: dict[str, str] = {}  # by the name that each binds
        self.modules = Modules()
        for statement in of_the_process(self.namespace):
            self._take(statement.text.split("\n")[0], statement, statement.text)
        for statement in self.bindings.values():  # it holds for all that follows
            if isinstance(statement.node, ast.ImportFrom) and statement.node.module == "__future__":
                self.imports |= dict.fromkeys(statement.binds, statement.text)

    def expression(self, value: Any) -> str:
        """What stands for it in the script: a literal, a name of the notebook's, or how it is made.

        Raises:
            CourseError: there is no such thing.
        """
        if (text := literal(value)) is not None:
            return text
        if name := self._name_of(value):
            self.add(name, "the call")
            return name
        if isinstance(value, enum.Enum) and value.name in type(value).__members__:
            return f"{self.expression(type(value))}.{value.name}"
        if isinstance(value, PurePath):
            self.imports["pathlib"] = "import pathlib"
            kind = "Path" if isinstance(value, Path) else type(value).__name__
            return f"pathlib.{kind}({literal(str(value))})"
        if isinstance(value, types.MethodType):
            owner, name = value.__self__, value.__name__
            if getattr(owner, name, None) == value:  # a lambda has another one there
                return f"{self.expression(owner)}.{name}"
        place = (value.__name__, "") if isinstance(value, types.ModuleType) else place_of(value)
        if place and (text := self._from(*place)):
            return text
        raise CourseError(
            f"export knows no name for {value!r:.60}: write name = … at the top of a cell, and "
            "give the name."
        )

    def _name_of(self, value: Any) -> str | None:
        """A function's own name, else the first public one that a cell bound to this object."""
        own = getattr(value, "__name__", None)
        names = [name for name in self.bindings if self.namespace.get(name) is value]
        return own if own in names else min(names, key=lambda name: name[0] == "_", default=None)

    def _from(self, module: str, name: str) -> str | None:
        """`module.name`, and the import of the module; None where its name is another value's."""
        taken = self.namespace.get(module.partition(".")[0])
        if is_of_course(module):
            root = name.partition(".")[0]
            module, _ = self.modules.beside(module, root or None, root or module, "the call")
        else:
            self.modules.bring(module, "the call")
        if taken is not None and not isinstance(taken, types.ModuleType):
            return None
        self.imports[module] = f"import {module}"
        return f"{module}.{name}".rstrip(".")

    def add(self, name: str, used_by: str) -> None:
        """Take the statement that made `name` what it is, after those of all names that it uses."""
        if name == "get_ipython":
            refuse(name, used_by, "a line that begins with % or ! runs in a notebook only")
        statement = self.bindings.get(name)
        missing = name not in self.namespace or (statement is None and hasattr(builtins, name))
        if name in self.used_by or name.startswith("__") or missing:
            return
        self.used_by[name] = used_by

        if statement and isinstance(statement.node, ast.Import | ast.ImportFrom):
            self._import(name, statement.node)
            return
        value = self.namespace[name]
        constant = literal(value)
        if constant is None or (statement and _assigns(statement.node, constant)):
            if statement is None:
                why = "no statement at the top of a cell makes it; write one, and run it"
                refuse(name, used_by, why)
            self._take(name, statement, statement.text)
            for change in self.changes[name] if name in self.changed else ():
                self._take(name, change, id(change))  # the same one twice, where it ran twice
        else:  # changed since, or made by the machine
            self.statements[name] = f"{name} = {constant}"
        # The order of the script: a name stands after those that it uses.
        self.used_by[name] = self.used_by.pop(name)

    def _take(self, name: str, statement: Statement, key: object) -> None:
        """Write a statement, once for each key, after those of all names that it uses."""
        for used in self.bindings:
            if used in statement.uses:
                self.add(used, name)
        for used in sorted(statement.uses - self.bindings.keys()):
            self.add(used, name)
        text = self.modules.rewritten(statement.text, "", name)
        if text != statement.text:
            used_by = self.used_by.get(name, "the script")
            refuse(name, used_by, "it imports from course_utils; do so at the top of a cell")
        self.statements[key] = text
        words = (
            getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(statement.node)
        )
        self.joins |= "init_process_group" in words

    def _import(self, name: str, node: ast.Import | ast.ImportFrom) -> None:
        """The import of this name; where it is the course's own, from the file that is copied."""
        for module, attribute, known_as in imported(node, ""):
            if known_as == "*":
                known_as = attribute = name
            if known_as == name or known_as.startswith(f"{name}."):
                line = self.modules.line(module, attribute, known_as, self.used_by[name])
                self.imports[known_as] = line
        for submodule in self.bindings:
            if submodule.startswith(f"{name}."):
                self.imports[submodule] = f"import {submodule}"

    def check(self, code: str, called: str) -> set[str]:
        """Run the script up to its `main`, and refuse what it makes otherwise than the kernel.

        The result: names of which the statements that changed their values may help.
        """
        names = [*self.used_by]
        result = _in_a_process(code, self.modules.files, names, called)
        untried = {name for name in names if self.changes[name]} - self.changed
        if isinstance(result, str):
            if untried:
                return untried
            raise CourseError(f"{called} cannot be exported: {result}")

        values = {name: self.namespace[name] for name in names}
        found = Fingerprint(values | _process(), self.modules.moved).difference(result)
        if found is None:
            return set()
        if found[0] not in untried:
            self._refuse(*found, called)
        return {found[0]}

    def _refuse(self, name: str, path: str, here: str, there: str, called: str) -> NoReturn:
        used_by = self.used_by.get(name, called)
        if name in _process():
            raise CourseError(
                f"{called} cannot be exported: {name} has set {here} in this kernel, and {there} "
                "in the script. Call it at the top of a cell, or in the function."
            )
        if here == ONLY_HERE:
            refuse(name, used_by, f"{path} is {here}; make it in the function")
        differs = f"{path} is {here:.200} in this kernel, and {there:.200} where only the script's"
        refuse(
            name,
            used_by,
            f"{differs} statements have run. Run its cell again, put what changed it there, or "
            "make it in the function, from a file if only this kernel has it",
        )


def _in_a_process(
    code: str, files: dict[str, str], names: list[str], called: str
) -> Fingerprint | str:
    """What the code makes of the names, or why it cannot, in a process that ran nothing else."""
    here, counts = rank_accelerator()
    device = here if here != "tpu" and 1 in counts else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files)
        how: dict[str, Any] = {"device": device, "init_group": False, "show": False}
        try:
            run = launch(_run, code, folder, names, ranks=1, time_limit=MOST_SECONDS, **how)
        except RankError as error:
            raise CourseError(
                f"{called} cannot be exported: the statements that it needs do not end well within "
                f"{MOST_SECONDS} s in a process of their own. Do such work in the function.\n"
                f"{error}"
            ) from None
    return run.results[0]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _run(code: str, folder: str, names: list[str]) -> Fingerprint | str:
    """In a process of its own: what the statements make of the names, or why they cannot."""
    import torch

    sys.path[:] = [folder, *filter(is_installed, sys.path)]
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(code, "script", "exec"), vars(main))
    except BaseException as error:
        steps = traceback.extract_tb(error.__traceback__)
        lines = [step.lineno or 0 for step in steps if step.filename == "script"]
        lines += [error.lineno or 0] if isinstance(error, SyntaxError) else []
        text = code.split("\n")[lines[0] - 1].strip()
        return (
            f"where nothing else has run, {text} raises {type(error).__name__}: {error}. Run the "
            "cells of what it uses before it, or do this in the function."
        )
    return Fingerprint({name: vars(main).get(name) for name in names} | _process())


def _process() -> dict[str, Any]:
    """What a launch takes along of the process, beside values, by the function that sets it."""
    import torch

    return {
        "torch.set_default_dtype": torch.get_default_dtype(),
        "torch.set_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.use_deterministic_algorithms": torch.get_deterministic_debug_mode(),
    }


def _assigns(node: ast.stmt, constant: str) -> bool:
    """Whether the statement assigns just this literal."""
    wanted = ast.parse(constant, mode="eval").body
    return isinstance(node, ast.Assign) and ast.dump(node.value) == ast.dump(wanted)


def literal(value: Any) -> str | None:
    """The expression of a plain value, or of a container of plain values; None for any other."""
    if type(value) is str:
        return json.dumps(value, ensure_ascii=False)
    if type(value) is float and repr(value) in ("inf", "-inf", "nan"):
        return f'float("{value}")'
    if type(value) not in (*SCALARS, *CONTAINERS):
        return None
    with suppress(ValueError, SyntaxError):
        if ast.literal_eval(repr(value)) == value:
            return repr(value)
    return None


def namespace_of(function: Callable) -> dict[str, Any]:
    """That of the cells that define it; for a module's function, that of the notebook."""
    for code in (function, type(function).__call__, getattr(function, "__init__", None)):
        own = getattr(code, "__globals__", {})
        if own.get("__name__") == "__main__":
            return own
    return vars(sys.modules["__main__"])
