"""`export`: fills the texts beside this file with what a notebook's function needs."""

import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import CourseError
from .needed import Needed, literal

HERE = Path(__file__).parent
MARK = "Exported from a notebook"
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
    """Write what `launch(function, *args, …)` would run as a script of plain torch.

    It runs under `python` and `torchrun`, and has the statements that the function needs, as they
    stand in the cells, with `dist_utils.py`, `data.py` and `models.py` beside it. Numbers, texts
    and truth values among the arguments become options of its command line.

    Args:
        function: a function that a cell defines, and its arguments, as `launch` gets them.
        path: where to write it; a file that is not an export of before is not overwritten.
        ranks, nodes: how many processes in all, on how many hosts, in the commands that the files
            show.
        device: "cpu" or "cuda", the default of its option --device; else the accelerators of each
            host, or its CPU.
        time_limit: seconds that a collective waits for the other ranks; by default torch's own.
        beside: other files to write, of "slurm" (for sbatch) and "kubernetes" (a TrainJob of
            Kubeflow Trainer 2).

    Raises:
        CourseError: something that it uses exists in this kernel only; the message says what, and
            what to do.
    """
    path = Path(path)
    each = ranks // nodes
    kind = str(device).partition(":")[0] if device else None
    needed = Needed(getattr(inspect.unwrap(function), "__globals__", {}))
    name = needed.argument(function)
    options, call = _call(needed, name, inspect.signature(function).bind(*args, **kwargs))
    if _returns(needed.found[name].node):
        call = f'result = {call}\nif dist.get_rank() == 0:\n    print("result:", result)'

    about = inspect.getdoc(function) or f"{name}, on any number of ranks."
    script = _filled(
        "script",
        title=about.splitlines()[0],
        file=path.name,
        each=each,
        hosts=max(nodes, 2),
        copied=", ".join(sorted(needed.files)),
        imports="\n".join(sorted(needed.imports, key=lambda line: (line.startswith("from"), line))),
        code="\n\n\n".join(dict.fromkeys(needed.statements.values())),
        device=literal(kind),
        options="\n".join(f"    parser.add_argument({option})" for option in options),
        timeout=f", timeout={time_limit}" if time_limit else "",
        call=textwrap.indent(call, "    "),
    )
    files = {path.name: script}
    for file, text in needed.files.items():
        files[file] = f"# {MARK}.\n{text}"
    jobs = {
        path.stem + SUFFIXES[job]: _job(job, path, files, each, nodes, kind or "cuda")
        for job in beside
    }
    _write(path.parent, files | jobs)
    return path


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all files, or none where one would replace something else than an earlier export."""
    for name in files:
        old = folder / name
        if old.exists() and MARK not in old.read_text(errors="replace"):
            raise CourseError(
                f"{old} is there already, and is no export: take another folder, or remove it."
            )
    for name, text in files.items():
        (folder / name).write_text(text)


def _filled(template: str, **values: Any) -> str:
    return (HERE / f"{template}.txt").read_text().format(**values)


def _returns(node: ast.stmt) -> bool:
    """Whether calling what this statement makes gives something; of a lambda, it always does."""
    if isinstance(node, ast.Assign):
        return True
    return any(isinstance(one, ast.Return) and one.value for one in ast.walk(node))


def _call(needed: Needed, name: str, bound: inspect.BoundArguments) -> tuple[list[str], str]:
    """The options of the command line, and the call, which takes numbers and texts from them."""
    options = []
    given = {*bound.arguments}
    bound.apply_defaults()
    for key, value in [*bound.arguments.items()]:
        parameter = bound.signature.parameters[key]
        if type(value) in (bool, int, float, str) and literal(value) and key != "device":
            options.append(_option(parameter, value))
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
    call = f"{name}({', '.join(parts)})"
    if len(call) > 80:  # a line each, as a formatter writes it
        call = "\n".join([f"{name}(", *(f"    {part}," for part in parts), ")"])
    return options, call


def _option(parameter: inspect.Parameter, value: bool | int | float | str) -> str:
    """The arguments of `parser.add_argument` for this parameter of the function."""
    name = parameter.name.replace("_", "-")
    if type(value) is bool:
        how = "action=argparse.BooleanOptionalAction"
    else:
        takes_float = float in (parameter.annotation, type(parameter.default))
        how = f"type={'float' if takes_float else type(value).__name__}"
    return f'"--{name}", {how}, default={literal(value)}'


def _job(kind: str, path: Path, files: dict[str, str], each: int, nodes: int, device: str) -> str:
    """What a cluster asks for beside the script.

    It names the device, so that a node with a broken driver fails. A TrainJob has the files in its
    command, as Kubeflow's own SDK sends a function.
    """
    copies = ""
    for name, text in files.items():
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
