"""`export`: what `launch` would run, as a script for the machines that a notebook does not reach.

It fills the texts beside this file; `dist_utils.py` lies beside every script, as it is here.
"""

import ast
import builtins
import inspect
import json
import linecache
import re
import shlex
import symtable
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from io import IOBase
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ..errors import CourseError, cell_name
from ..machine import pick
from ..ranks import report, span

HERE = Path(__file__).parent
MARK = "Exported from a notebook"
OWN_IMPORTS = (
    "import argparse",
    "import torch.distributed as dist",
    "from dist_utils import init_distributed",
    "from torch.distributed.elastic.multiprocessing.errors import record",
)
OWN_NAMES = ("argparse", "dist", "init_distributed", "main", "record")
LESSONS = (
    "course_utils.lessons.data",
    "course_utils.lessons.models",
)  # plain torch: they are copied as they are
SUFFIXES = {"slurm": ".sbatch", "kubernetes": ".yaml"}


def export(
    function: Callable,
    path: str | Path,
    *args: Any,
    ranks: int = 4,
    nodes: int = 1,
    device: object = None,
    time_limit: float | None = None,
    beside: tuple[str, ...] = (),
    **kwargs: Any,
) -> Path:
    """Write what `launch(function, *args, …)` would run as a script of plain torch, for `python` and `torchrun`.

    It has the statements that the function needs, as they stand in the cells, and `dist_utils.py`, `data.py` and
    `models.py` beside it. Numbers, texts and truth values among the arguments become options of its command line.

    Args:
        function: a function that a cell defines, and its arguments, as `launch` gets them.
        path: where to write it; a file that is not an export of before is not overwritten.
        ranks, nodes: how many processes in all, on how many hosts, in the commands that the files show.
        device: "cpu" or "cuda", the default of its option --device; else the accelerators of each host, or its CPU.
        time_limit: seconds that a collective waits for the other ranks; by default torch's own.
        beside: other files to write, of "slurm" (for sbatch) and "kubernetes" (a TrainJob of Kubeflow Trainer 2).

    Raises:
        CourseError: something that it uses exists in this kernel only; the message says what, and what to do.
    """
    path, each, device = Path(path), ranks // nodes, device and str(device).partition(":")[0]
    needed = Needed(getattr(inspect.unwrap(function), "__globals__", {}))
    name = needed.argument(function)
    options, call = _call(needed, name, inspect.signature(function).bind(*args, **kwargs))
    made_by = needed.found[name][0]
    if isinstance(made_by, ast.Assign) or any(
        isinstance(one, ast.Return) and one.value for one in ast.walk(made_by)
    ):
        call = f'result = {call}\nif dist.get_rank() == 0:\n    print("result:", result)'
    script = (
        (HERE / "script.txt")
        .read_text()
        .format(
            title=(inspect.getdoc(function) or f"{name}, on any number of ranks.").splitlines()[0],
            file=path.name,
            each=each,
            hosts=max(nodes, 2),
            copied=", ".join(sorted(needed.files)),
            imports="\n".join(
                sorted(needed.imports, key=lambda line: (line.startswith("from"), line))
            ),
            code="\n\n\n".join(dict.fromkeys(needed.statements.values())),
            device=_literal(device),
            options="\n".join(f"    parser.add_argument({one})" for one in options),
            timeout=f", timeout={time_limit}" if time_limit else "",
            call=textwrap.indent(call, "    "),
        )
    )
    files = {path.name: script} | {
        file: f"# {MARK}.\n{text}" for file, text in needed.files.items()
    }
    jobs = {
        path.stem + SUFFIXES[kind]: _job(kind, path, files, each, nodes, device or "cuda")
        for kind in beside
    }
    for old in map(path.with_name, files | jobs):
        if old.exists() and MARK not in old.read_text(errors="replace"):
            raise CourseError(
                f"{old} is there already, and is no export: take another folder, or remove it."
            )
    for file, text in (files | jobs).items():
        path.with_name(file).write_text(text)
    return path


def _call(needed: "Needed", name: str, bound: inspect.BoundArguments) -> tuple[list[str], str]:
    """The options of the command line, and the call of the function, which takes its numbers and texts from them."""
    options, given = [], {*bound.arguments}
    bound.apply_defaults()
    for key, value in [*bound.arguments.items()]:
        parameter = bound.signature.parameters[key]
        if type(value) in (bool, int, float, str) and _literal(value) and key != "device":
            kind = (
                float if float in (parameter.annotation, type(parameter.default)) else type(value)
            )
            how = (
                "action=argparse.BooleanOptionalAction" if kind is bool else f"type={kind.__name__}"
            )
            options.append(f'"--{key.replace("_", "-")}", {how}, default={_literal(value)}')
            bound.arguments[key] = f"args.{key}"
        elif key not in given:
            del bound.arguments[key]
        elif parameter.kind is parameter.VAR_POSITIONAL:
            bound.arguments[key] = [*map(needed.argument, value)]
        elif parameter.kind is parameter.VAR_KEYWORD:
            bound.arguments[key] = {word: needed.argument(one) for word, one in value.items()}
        else:
            bound.arguments[key] = needed.argument(value)
    parts = [*bound.args, *(f"{word}={text}" for word, text in bound.kwargs.items())]
    return options, f"{name}({', '.join(parts)})"


def _job(kind: str, path: Path, files: dict[str, str], each: int, nodes: int, device: str) -> str:
    """What a cluster asks for beside the script: it names the device, so that a node with a broken driver fails.

    A TrainJob has the files in its command, as Kubeflow's own SDK sends a function.
    """
    copies = "".join(
        f"cat > {shlex.quote(one)} <<'END_OF_FILE'\n{text}END_OF_FILE\n"
        for one, text in files.items()
    )
    job = (
        re.sub("[^a-z0-9]+", "-", path.stem.lower()).lstrip("-0123456789").rstrip("-") or "job"
    )  # as Kubernetes asks
    return (
        (HERE / f"{kind}.txt")
        .read_text()
        .format(
            stem=path.stem,
            job=job,
            nodes=nodes,
            each=each,
            device=device,
            script=shlex.quote(path.name),
            cpus=each if device == "cpu" else 4 * each,  # some for the workers of a DataLoader
            off="#" if device == "cpu" else "",
            files=textwrap.indent(copies, " " * 8).rstrip(),
        )
    )


def _statements(space: dict[str, Any]) -> dict[str, tuple[ast.stmt, str, set[str]]]:
    """The statement at the top of a cell that bound each name last: it, its lines, and the global names that it uses.

    The names are in the order of the cells that ran.
    """
    # Where the front end keeps no history, as nbval does not: what IPython compiled.
    compiled = ("".join(linecache.getlines(file)) for file in [*linecache.cache] if cell_name(file))
    found = {}
    for cell in [*filter(None, space.get("In", ()))] or compiled:
        with suppress(SyntaxError):  # that cell did not run
            for node in ast.parse(cell).body:
                first = min(
                    [node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]
                )
                text = "\n".join(cell.split("\n")[first - 1 : node.end_lineno])
                top = symtable.symtable(text, "cell", "exec")
                tables = [top]
                for table in tables:
                    tables += table.get_children()
                uses = {
                    one.get_name()
                    for table in tables
                    for one in table.get_symbols()
                    if one.is_referenced() and (table is top or one.is_global())
                }
                binds = (
                    one.get_name()
                    for one in top.get_symbols()
                    if one.is_assigned() or one.is_imported()
                )
                found |= dict.fromkeys(binds, (node, text, uses))
    return found


class Needed:
    """What a function needs: statements, each after those that it uses; imports; files beside the script."""

    def __init__(self, space: dict[str, Any]) -> None:
        self.space, self.found, self.statements, self.seen = space, _statements(space), {}, set()
        self.imports, self.files = (
            {*OWN_IMPORTS},
            {"dist_utils.py": (HERE / "dist_utils.py").read_text()},
        )

    def argument(self, value: Any) -> str:
        """What stands for it in the script: a literal, or the notebook's name for it, its own the first."""
        if (text := _literal(value)) is not None:
            return text
        own = getattr(value, "__name__", None)
        names = [
            name
            for name, other in self.space.items()
            if other is value and (name == own or name[0] != "_")
        ]
        if not names:
            raise CourseError(
                f"export knows no name for {value!r:.60}: write name = … in a cell, and give the name."
            )
        name = own if own in names else names[0]
        self.add(name, "the call")
        return name

    def add(self, name: str, user: str) -> None:
        """The statement that made `name` what it is, after those of all names that it uses."""
        import torch

        there = name in self.space
        if name in self.seen or name.startswith("__") or (not there and hasattr(builtins, name)):
            return
        self.seen.add(name)
        value, constant = self.space.get(name), _literal(self.space.get(name)) if there else None
        node, text, uses = self.found.get(name, (None, "", set()))
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imports.add(self._import(name, value, user, node))
            return
        if name in OWN_NAMES:
            _refuse(name, user, "the script has something of that name; give it another one")
        if constant is not None:
            if not isinstance(node, ast.Assign) or ast.dump(node.value) != ast.dump(
                ast.parse(constant).body[0].value
            ):
                text, uses = f"{name} = {constant}", set()  # changed since, or made by the machine
        elif not isinstance(
            node, (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef, ast.If, ast.Try)
        ):
            _refuse(name, user, "no cell that ran makes it by def, class, import or name = …")
        elif isinstance(value, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, IOBase)) or (
            name in uses and isinstance(node, ast.Assign)
        ):
            _refuse(
                name,
                user,
                f"only this kernel has that {type(value).__name__} as it is; make it in the function",
            )
        for one in [*self.found, *sorted(uses - self.found.keys())]:
            if one in uses:
                self.add(one, name)
        self.statements[name] = text

    def _import(self, name: str, value: Any, user: str, node: ast.Import | ast.ImportFrom) -> str:
        """The import of this name; where it is the course's own, from the file that is copied."""
        start = f"from {node.module} import" if isinstance(node, ast.ImportFrom) else "import"
        alias = next(one for one in node.names if (one.asname or one.name.split(".")[0]) == name)
        if "course_utils" not in f"{start} {alias.name}":
            return f"{start} {ast.unparse(alias)}"
        module = getattr(inspect.getmodule(value), "__name__", "")
        if any(value is one for one in (pick, report, span)):
            module = "dist_utils"
        elif module in LESSONS:
            text, module = inspect.getsource(sys.modules[module]), module.rpartition(".")[2]
            self.files[f"{module}.py"] = text
        else:
            _refuse(
                name,
                user,
                "it is a tool of this course for the notebook; take it out of the function",
            )
        text = (
            f"import {module}"
            if isinstance(value, ModuleType)
            else f"from {module} import {value.__name__}"
        )
        return text if name == text.split()[-1] else f"{text} as {name}"


def _literal(value: Any) -> str | None:
    """The expression of a plain value, or of a container of plain values; None for any other."""
    if type(value) is str:
        return json.dumps(value, ensure_ascii=False)
    with suppress(ValueError, SyntaxError):
        if type(value) in (type(None), bool, int, float, bytes, tuple, list, dict, set):
            return repr(value) if ast.literal_eval(repr(value)) == value else None
    return None


def _refuse(name: str, user: str, why: str) -> NoReturn:
    raise CourseError(f"{name}, which {user} uses, cannot be exported: {why}.")
