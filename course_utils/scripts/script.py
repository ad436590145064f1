"""`export`: fills the texts beside this file with what a notebook's function needs."""

import inspect
import re
import shlex
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import CourseError
from .needed import Needed, literal, namespace_of, write

HERE = Path(__file__).parent
MARK = "Exported from a notebook"
SUFFIXES = {"slurm": ".sbatch", "kubernetes": ".yaml"}
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

    It runs under `python` and `torchrun`, and has the statements of the cells that the function
    needs. These are run once, in a process of their own, and what they make is compared with what
    this kernel has, which is what a launch would send. A plain value that was changed since its
    cell ran is written as it is now; anything else that differs is refused by its name.

    What cells set for the whole process goes along, such as `torch.set_default_dtype(…)`,
    `warnings.filterwarnings(…)`, `os.environ[…] = …` and `%env`; a seed does not, nor does it with
    `launch`. Of what a function that cells call has set, export sees torch's default dtype,
    precision of matrix products and deterministic algorithms, and refuses; the rest it cannot see.

    Beside the script lie `dist_utils.py` and the modules that it imports from the notebook's folder
    and from this course. Numbers, texts and truth values among the arguments become options of its
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
        init_group: False leaves `torch.distributed.init_process_group()` to the function.
        jobs: other files to write, of "slurm" (for sbatch) and "kubernetes" (a TrainJob of
            Kubeflow Trainer 2).

    Raises:
        CourseError: the script would compute with something else than a launch; the message says
            what differs, and what to do.
    """
    path = Path(path).expanduser()
    each = _ranks_of_a_host(ranks, nodes)
    if wrong := {*jobs} - {*SUFFIXES}:
        raise CourseError(f"jobs={jobs!r}: {min(wrong)!r} is none of {', '.join(SUFFIXES)}.")
    while isinstance(function, partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func

    kind = str(device).partition(":")[0] if device else None
    bound = _bound(function, args, kwargs)
    options = _options(bound)
    namespace = namespace_of(inspect.unwrap(function))
    changed: set[str] = set()
    while True:
        needed = Needed(namespace, changed)
        callee = needed.expression(function)
        given = _given(needed, bound)
        how = f", timeout={timeout}" if timeout else ""
        if not init_group or needed.joins:
            how += ", init_group=False"
        script = _script(
            needed,
            callee,
            given,
            title=_title(function, callee),
            options=options,
            file=path.name,
            each=each,
            hosts=max(nodes, 2),
            device=literal(kind),
            how=how,
        )
        more = needed.check(script.rpartition("\n\n\n")[0], callee)
        if not more:
            break
        changed |= more

    copies = needed.modules.files
    if path.name in copies:
        raise CourseError(f"the script imports another {path.name}: give it another name.")
    files = {path.name: script} | {file: f"# {MARK}.\n{text}" for file, text in copies.items()}
    job_files = {
        path.stem + SUFFIXES[job]: _job(job, path, files, each, nodes, kind or "cuda")
        for job in jobs
    }
    _write(path.parent, files | job_files)
    return path


def _script(
    needed: Needed,
    callee: str,
    given: list[tuple[str, str]],
    *,
    options: list[tuple[inspect.Parameter, Any]],
    **texts: Any,
) -> str:
    """The text of the script, in which the notebook's names come before its own."""
    own = _own_names(needed)
    call = f"{own['result']} = {_call(callee, given, own['args'])}"
    copied = {file.partition("/")[0] for file in needed.modules.files}
    return _filled(
        "script",
        imports="\n".join(_imports({*needed.imports.values()})),
        code="".join(f"\n\n\n{text}" for text in needed.statements.values()),
        copied=", ".join(sorted(copied)),
        options="\n".join(f"    {_option(*option, own)}" for option in options),
        call=textwrap.indent(call, "    "),
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


def _bound(function: Callable, args: tuple, kwargs: dict) -> inspect.BoundArguments:
    signature = inspect.signature(function)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise CourseError(f"{name}{signature} cannot be called so: {error}.") from None


def _imports(lines: Iterable[str]) -> list[str]:
    """__future__ first, then modules, then parts of modules, those of one together."""
    parts = defaultdict(list)
    for line in sorted(lines):
        start, _, names = line.partition("import ")
        parts[start].append(names)
    modules = [f"import {name}" for name in parts.pop("", [])]
    others = [f"{start}import {', '.join(names)}" for start, names in parts.items()]
    return sorted(modules + others, key=lambda line: ("__future__" not in line, line[0] == "f"))


def _own_names(needed: Needed) -> dict[str, str]:
    """What the script calls its own, and their imports; a name of the notebook's stays as it is."""
    names = {}
    for name, line in OWN.items():
        known_as = name
        taken = {*needed.used_by, *needed.imports}
        while known_as in taken and needed.imports.get(known_as) != line:
            known_as = f"_{known_as}"
        names[name] = known_as
        if line and known_as == name:
            needed.imports[name] = line
        elif line:
            needed.imports[known_as] = f"{line} as {known_as}"
    return names


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all files, or none where one would replace something else than an earlier export."""
    new = {}
    for name, text in files.items():
        old = folder / name
        kept = old.read_text(errors="replace") if old.exists() else MARK
        if f"# {MARK}.\n{kept}" == text:  # the module itself, which lies there
            continue
        if MARK not in kept:
            raise CourseError(
                f"{old} is there already, and is no export: take another folder, or remove it."
            )
        new[name] = text
    write(folder, new)


def _filled(template: str, **values: Any) -> str:
    return (HERE / f"{template}.txt").read_text().format(**values)


def _options(bound: inspect.BoundArguments) -> list[tuple[inspect.Parameter, Any]]:
    """The options of the command line: numbers and texts, which the call takes from them."""
    options = []
    given = {*bound.arguments}
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
        takes_float = float in (parameter.annotation, type(parameter.default))
        how = f"type={'float' if takes_float else type(value).__name__}"
    return f'{own["parser"]}.add_argument("--{name}", {how}, default={literal(value)})'


def _job(kind: str, path: Path, files: dict[str, str], each: int, nodes: int, device: str) -> str:
    """What a cluster asks for beside the script.

    It names the device, so that a node with a broken driver fails. A TrainJob has the files in its
    command, as Kubeflow's own SDK sends a function.
    """
    copies = ""
    for name, text in files.items():
        if "/" in name:
            copies += f"mkdir -p {shlex.quote(str(Path(name).parent))}\n"
        copies += f"cat > {shlex.quote(name)} <<'END_OF_FILE'\n{text}END_OF_FILE\n"
    # Kubernetes takes lower-case letters, digits and hyphens, a letter first.
    job = re.sub("[^a-z0-9]+", "-", path.stem.lower()).lstrip("-0123456789").rstrip("-") or "job"
    on_cpu = device == "cpu"
    return _filled(
        kind,
        stem=path.stem,
        job=job,
        nodes=nodes,
        each=each,
        device=device,
        script=shlex.quote(path.name),
        cpus=each if on_cpu else 4 * each,  # some for the workers of a DataLoader
        off="#" if on_cpu else "",
        files=textwrap.indent(copies, " " * 8).rstrip(),
    )
