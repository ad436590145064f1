"""`export`: fills the texts beside this file with what a notebook's function needs."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CourseError
from ..ranks.call import check
from .cells import namespace_of, statements
from .files import MARK, Files, write
from .jobs import SUFFIXES, job
from .literals import import_lines, literal

if TYPE_CHECKING:
    from .needed import Needed

OWN = {  # names of the script itself, with their imports
    "argparse": "import argparse",
    "init_distributed": "from dist_utils import init_distributed",
    "leave_distributed": "from dist_utils import leave_distributed",
    "record": "from torch.distributed.elastic.multiprocessing.errors import record",
    "main": "",
    "parser": "",
    "args": "",
    "result": "",
}


class Option(str):
    """The name of an option of the command line."""


def export(
    function: Callable,
    path: str | Path,
    /,
    *args: Any,
    ranks: int = 4,
    nodes: int = 1,
    device: object = None,
    timeout: float | None = None,
    init_group: bool = True,
    jobs: Sequence[str] = (),
    **kwargs: Any,
) -> Path:
    """Write what `launch(function, *args, …)` would run as a script of plain torch.

    It runs under `python` and `torchrun`. Imports, functions and classes are written as they stand
    in the cells, and plain values as they are now. Of any other value its statement is written, if
    that makes the same value once more: it is run once, in a process of its own, where it may
    change no file of before. Else the value goes into a file beside the script, train.values.pt
    beside train.py. What cannot is refused by its name: a closure, or a base of a class, that its
    statement does not make any more.

    What was set for the whole process goes along, too: environment variables that cells name and
    the notebook has set, calls at their top that set filters of warnings, levels of loggers, and of
    torch its default dtype and device, precision of matrix products, deterministic algorithms,
    anomaly detection, and whether gradients are recorded. A seed does not, nor does it with
    `launch`.

    Beside the script lie the package `dist_utils` and the modules that it imports from the
    notebook's folder. Numbers, texts and truth values among the arguments become options of its
    command line.

    Args:
        function: a function of a cell or of a module, a method, a partial; and its arguments, as
            `launch` gets them.
        path: where to write it; a file that is not an export of before is not overwritten.
        ranks, nodes: how many processes in all, on how many hosts, in the commands that the files
            show.
        device: "cpu", "cuda", …: the default of the script's option --device. None: the script
            takes the accelerators of each host, or its CPU where it has none.
        timeout: seconds that a collective waits for the other ranks; by default torch's own.
        init_group: False leaves `torch.distributed.init_process_group()` to the function, for
            another group than `launch` would join.
        jobs: other files to write, of "slurm" (for sbatch) and "kubernetes" (a TrainJob of
            Kubeflow Trainer 2, which has the files in it).

    Raises:
        CourseError: the script would compute with something else than a launch; the message says
            what differs, and what to do.
    """
    from .needed import Needed  # which imports torch

    path = Path(path).expanduser()
    each = _ranks_of_a_host(ranks, nodes)
    if wrong := {*jobs} - {*SUFFIXES}:
        raise CourseError(f"jobs={jobs!r}: {min(wrong)!r} is none of {', '.join(SUFFIXES)}.")
    while isinstance(function, partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    check(function, args, kwargs, set())

    bound = inspect.signature(function).bind(*args, **kwargs)
    own = {"ranks": ranks, "nodes": nodes, "device": device, "timeout": timeout, "jobs": jobs}
    for name, value in own.items():
        is_theirs = name in bound.signature.parameters and name not in bound.arguments
        if is_theirs and value != inspect.signature(export).parameters[name].default:
            raise CourseError(
                f"{name}= may be meant for export or for the function, which both know it: give "
                "the function its own by position."
            )
    options = _options(function, bound)
    namespace = {**namespace_of(inspect.unwrap(function))}
    cells = statements(namespace)
    needed = Needed(namespace, cells, set(), set())
    while True:
        known = {*needed.saved}
        callee = needed.expression(function)
        given = _given(needed, bound)
        if needed.saved == known and needed.agrees(callee):
            break
        needed = Needed(namespace, cells, needed.saved, needed.changed)

    kind = str(device).partition(":")[0] if device else None
    how = f", timeout={timeout}" if timeout else ""
    beside = needed.files(path.stem)
    imported = {line.split()[1].partition(".")[0] for line in needed.imports.values()}
    if path.name in beside or path.stem in imported | sys.stdlib_module_names:
        raise CourseError(f"the script imports another {path.name}: give it another name.")
    script = _script(
        needed,
        callee,
        given,
        options,
        beside=", ".join(sorted({file.partition("/")[0] for file in beside})),
        title=_title(function, callee),
        file=shlex.quote(path.name),
        each=each,
        hosts=max(nodes, 2),
        device=literal(kind),
        how=how if init_group else f"{how}, init_group=False",
    )
    files: Files = {path.name: script}
    for name, text in beside.items():
        files[name] = text if isinstance(text, bytes) else f"# {MARK}.\n{text}"
    job_files = {
        path.stem + SUFFIXES[one]: job(one, path, files, each, nodes, kind or "cuda")
        for one in jobs
    }
    write(path.parent, files | job_files)
    return path


def _script(
    needed: Needed,
    callee: str,
    given: list[tuple[str, str]],
    options: list[tuple[inspect.Parameter, Any]],
    **texts: Any,
) -> str:
    """The text of the script, in which the notebook's names come before its own."""
    own = _own_names(needed)
    call = f"{own['result']} = {_call(callee, given, own['args'])}"
    template = Path(__file__).with_name("script.txt").read_text("utf-8")
    return template.format(
        imports=import_lines(needed.imports, needed.environment),
        code="".join(f"\n\n\n{piece.text}" for piece in needed.pieces.values()),
        options="".join(f"    {_option(*option, own)}\n" for option in options),
        call="    " + call.replace("\n", "\n    "),
        **texts,
        **own,
    )


def _title(function: Callable, callee: str) -> str:
    """The first line of its docstring, as it can stand in another one."""
    about = inspect.getdoc(function) or f"{callee}, on any number of ranks."
    return about.splitlines()[0].replace("\\", "\\\\").replace('"""', "'''")


def _ranks_of_a_host(ranks: int, nodes: int) -> int:
    if nodes < 1 or ranks < nodes or ranks % nodes:
        raise CourseError(
            f"ranks={ranks}, nodes={nodes}: every host gets equally many ranks, at least one; "
            f"give ranks={nodes * max(1, round(ranks / max(nodes, 1)))}, for example."
        )
    return ranks // nodes


def _own_names(needed: Needed) -> dict[str, str]:
    """What the script calls its own, and their imports; a name of the notebook's stays as it is."""
    names = {}
    for name, line in OWN.items():
        known_as = name
        taken = {*needed.used_by, *needed.imports, *needed.bound}
        while known_as in taken and needed.imports.get(known_as) != line:
            known_as = f"_{known_as}"
        names[name] = known_as
        if line and known_as == name:
            needed.imports[name] = line
        elif line:
            needed.imports[known_as] = f"{line} as {known_as}"
    return names


def _options(
    function: Callable, bound: inspect.BoundArguments
) -> list[tuple[inspect.Parameter, Any]]:
    """The options of the command line: numbers and texts, which the call takes from them."""
    options = []
    given = {*bound.arguments}
    if not hasattr(function, "__wrapped__"):  # whose wrapper may know others
        bound.apply_defaults()
    for key, value in [*bound.arguments.items()]:
        parameter = bound.signature.parameters[key]
        plain = type(value) in (bool, int, float, str) and literal(value)
        if plain and key not in ("device", "help") and key[0] != "_":
            options.append((parameter, value))
            bound.arguments[key] = Option(key)
        elif key not in given:
            del bound.arguments[key]
    return options


def _given(needed: Needed, bound: inspect.BoundArguments) -> list[tuple[str, str]]:
    """(keyword or "", expression or `Option`) of each argument of the call."""
    values = [("", value) for value in bound.args]
    values += [(f"{word}=", value) for word, value in bound.kwargs.items()]
    return [
        (word, value if isinstance(value, Option) else needed.expression(value))
        for word, value in values
    ]


def _call(callee: str, given: list[tuple[str, str]], args: str) -> str:
    """The call, on a line, or with a line for each argument."""
    parts = [
        f"{word}{args}.{text}" if isinstance(text, Option) else f"{word}{text}"
        for word, text in given
    ]
    call = f"{callee}({', '.join(parts)})"
    if len(call) > 80:  # as a formatter writes it
        call = "\n".join([f"{callee}(", *(f"    {part}," for part in parts), ")"])
    return call


def _option(parameter: inspect.Parameter, value: Any, own: dict[str, str]) -> str:
    """The line of the script for this parameter of the function."""
    name = parameter.name.replace("_", "-")
    if type(value) is bool:
        how = f"action={own['argparse']}.BooleanOptionalAction"
    else:
        kind = type(value)
        if kind is int and float in (parameter.annotation, type(parameter.default)):
            kind = float
        how = f"type={kind.__name__}"
    return f'{own["parser"]}.add_argument("--{name}", {how}, default={literal(value)})'
