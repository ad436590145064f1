"""`launch.export`: what `launch` would run, as a script for the machines that a notebook does not reach."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ground.errors import CourseError
from ..ranks.arguments import check_ranks
from .beside import BESIDE, beside_text
from .call import written
from .collect import Collector
from .script import MARK, Plan, script

if TYPE_CHECKING:
    import os

    import torch

FOR_THE_NOTEBOOK = ("live", "show")


def export(
    function: Callable,
    path: str | os.PathLike,
    *args: Any,
    ranks: int | None = None,
    nodes: int = 1,
    device: str | torch.device | None = None,
    backend: str | None = None,
    time_limit: float | None = None,
    init_group: bool = True,
    beside: tuple[str, ...] = (),
    **kwargs: Any,
) -> Path:
    """Write what `launch(function, *args, …)` would run as a script that stands alone.

    The script holds the function and what it uses from other cells, in plain torch: `report` writes JSON lines, one
    file a rank; `pick` and `span` are a few lines. It runs by `python`, and under `torchrun` on any number of hosts.
    Numbers, texts and truth values among the arguments become options of its command line.

    Args:
        function: a function that a cell defines, and its arguments, as `launch` gets them.
        path: where to write it; a file that is not an export of before is not overwritten.
        ranks, nodes: how many processes in all, on how many hosts, in the commands that the script's first lines show.
        device, backend, init_group: as for `launch`, now for the script. `live` and `show` mean nothing there.
        time_limit: seconds that a collective waits for the other ranks, then the rank fails, and torchrun starts all
            of them again; by default torch's own, 10 minutes for nccl and 30 for gloo.
        beside: other files to write, of "slurm" (for sbatch) and "kubernetes" (a TrainJob of Kubeflow Trainer 2).

    Returns:
        The path of the script.

    Raises:
        CourseError: something that it uses exists in this kernel only; the message says what, where and what to do.
    """
    ranks = check_ranks(ranks) or 4
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1 or ranks % nodes:
        raise CourseError(f"export(ranks={ranks}, nodes={nodes!r}): each host gets equally many ranks")
    if unknown := {*beside} - {*BESIDE}:
        raise CourseError(f"export(beside={beside!r}): {sorted(unknown)[0]} is none of {', '.join(BESIDE)}")
    path = Path(path)
    kwargs = {name: value for name, value in kwargs.items() if name not in FOR_THE_NOTEBOOK}
    collector = Collector()
    plain = inspect.unwrap(function)
    if not inspect.isfunction(plain):
        raise CourseError(f"export needs a function that a cell defines by def, and got {function!r:.60}")
    space = collector.space(plain.__globals__)
    text, arguments = written(collector, space, function, args, kwargs)
    collector.given.add("args")
    call = collector.part(space, text, f"{path.name}'s main")
    collector.parts.remove(call)
    device = None if device is None else str(device)
    group = _group(device, backend, time_limit) if init_group else ""
    plan = Plan(_about(function, path.name, ranks, nodes), arguments, group, device)
    files = {path: script(collector, call, plan)}
    for kind in beside:
        suffix, text = beside_text(kind, path.name, files[path], ranks=ranks, nodes=nodes, device=device)
        files[path.with_suffix(suffix)] = text
    for file in files:
        if file.exists() and MARK not in file.read_text(errors="replace"):
            raise CourseError(f"{file} is there already, and is no export: give another name, or remove it")
    for file, text in files.items():
        file.write_text(text)
    return path


def _group(device: str | None, backend: str | None, time_limit: float | None) -> str:
    backend = "gloo" if device == "cpu" and backend is None else backend
    # Without a backend torch takes that of the accelerator it finds, also for ranks on the CPU.
    first = "" if backend else "backend = dist.get_default_backend_for_device(device)\n"
    options = [f'"{backend}"' if backend else "backend"]
    if backend != "gloo" and device != "cpu":
        options += ["device_id=device" if device else 'device_id=None if device.type == "cpu" else device']
    options += [f"timeout=timedelta(seconds={time_limit:g})"] if time_limit else []
    return f"{first}dist.init_process_group({', '.join(options)})"


def _about(function: Callable, name: str, ranks: int, nodes: int) -> str:
    said = (inspect.getdoc(function) or "").partition("\n")[0].replace('"""', "'''").replace("\\", "")
    each = ranks // nodes
    several = f"--nnodes {max(nodes, 2)} --nproc-per-node {each} --rdzv-backend c10d --rdzv-endpoint HOST:29400"
    lines = [
        said or f"{function.__name__}, on any number of ranks.",
        "",
        f"{MARK}; it runs as",
        "",
        f"    python {name}",
        f"    torchrun --standalone --nproc-per-node {each} {name}",
        f"    torchrun {several} {name}",
        "",
        "the last one on every host. Each rank writes what it reports to runs/rank0.jsonl and so on.",
        "",
    ]
    return "\n".join(lines)
