"""`launch.export`: what `launch` would run, as a script for the machines that a notebook does not reach."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CourseError
from ..ranks.launch import place
from .beside import BESIDE, beside_text
from .call import Call
from .collect import Collector
from .script import joined, script

if TYPE_CHECKING:
    import os

    import torch

MARK = "Exported from a notebook"
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
        device: "cpu", or by default the accelerators where each rank of a host has its own, else the CPU.
        backend, init_group: as for `launch`, now for the script. `live` and `show` mean nothing there.
        time_limit: seconds that a collective waits for the other ranks, then the rank fails, and torchrun starts all
            of them again; by default torch's own, 10 minutes for nccl and 30 for gloo.
        beside: other files to write, of "slurm" (for sbatch) and "kubernetes" (a TrainJob of Kubeflow Trainer 2).

    Returns:
        The path of the script.

    Raises:
        CourseError: something that it uses exists in this kernel only; the message says what, where and what to do.
    """
    ranks = 4 if ranks is None else place(ranks, None)[0]
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1 or ranks % nodes:
        raise CourseError(f"export(ranks={ranks}, nodes={nodes!r}): each host gets equally many ranks")
    if unknown := {*beside} - {*BESIDE}:
        raise CourseError(f"export(beside={beside!r}): {sorted(unknown)[0]} is none of {', '.join(BESIDE)}")
    path = Path(path)
    kwargs = {name: value for name, value in kwargs.items() if name not in FOR_THE_NOTEBOOK}
    plain = inspect.unwrap(function)
    if not inspect.isfunction(plain):
        raise CourseError(f"export needs a function that a cell defines by def, and got {function!r:.60}")
    cpu = str(device).startswith("cpu")
    collector = Collector(cpu=cpu)
    call = Call(collector, collector.space(plain.__globals__), function, args, kwargs)
    group = joined(cpu=cpu, backend=backend, time_limit=time_limit) if init_group else []
    text = script(collector, call, _about(function, path.name, ranks, nodes), group)
    files = {path: text}
    for kind in beside:
        suffix, other = beside_text(kind, path.name, text, ranks=ranks, nodes=nodes, cpu=cpu)
        files[path.with_suffix(suffix)] = other
    for file in files:
        if file.exists() and MARK not in file.read_text(errors="replace"):
            raise CourseError(f"{file} is there already, and is no export: give another name, or remove it")
    for file, text in files.items():
        file.write_text(text)
    return path


def _about(function: Callable, name: str, ranks: int, nodes: int) -> str:
    said = (inspect.getdoc(function) or "").partition("\n")[0].replace('"""', "'''").replace("\\", "")
    each = ranks // nodes
    meet = "--rdzv-id NAME --rdzv-backend c10d --rdzv-endpoint HOST:29400"
    lines = [
        said or f"{function.__name__}, on any number of ranks.",
        "",
        f"{MARK}; it runs as",
        "",
        f"    python {name}",
        f"    torchrun --standalone --nproc-per-node {each} {name}",
        f"    torchrun --nnodes {max(nodes, 2)} --nproc-per-node {each} {meet} {name}",
        "",
        "the last one on every host. Each rank writes what it reports to runs/rank0.jsonl and so on.",
        "",
    ]
    return "\n".join(lines)
