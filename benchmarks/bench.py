"""What the benchmarks share: a live Jupyter kernel, memory of a process tree, Markdown tables."""

from __future__ import annotations

import argparse
import ast
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import psutil
from jupyter_client.manager import start_new_kernel

LIMIT = 60.0  # seconds after which a cell hangs


class Kernel:
    """A fresh kernel of this Python, as a notebook would use it; `with` ends it."""

    def __init__(self, folder: str) -> None:
        self._manager, self._client = start_new_kernel(cwd=folder)
        self.pid = self._manager.provisioner.process.pid

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        family = tree(self.pid)
        self._manager.shutdown_kernel(now=True)
        for process in family:  # some peers leave processes behind
            with suppress(psutil.Error):
                process.kill()

    def value(self, expression: str = "None", *, code: str = "") -> Any:
        """Run a cell, then evaluate an expression, a literal; raise what they raise."""
        reply = self._client.execute_interactive(
            code,
            timeout=LIMIT,
            output_hook=lambda _: None,
            user_expressions={"value": expression},
        )
        _raise(reply["content"])
        value = reply["content"]["user_expressions"]["value"]
        _raise(value)
        return ast.literal_eval(value["data"]["text/plain"])

    def begin(self, code: str) -> Callable[[], None]:
        """Start a cell; the result waits for its end and raises what it raised."""
        self._client.execute(code, allow_stdin=False)

        def finish() -> None:
            _raise(self._client.get_shell_msg(timeout=LIMIT)["content"])

        return finish


def _raise(content: dict) -> None:
    if content["status"] != "ok":
        raise RuntimeError("\n".join(content["traceback"]))


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def memory(pid: int) -> float:
    """Proportional set size of a process and its descendants, MB; on macOS each one's own pages."""
    total = 0
    for process in tree(pid):
        with suppress(psutil.Error):
            info = process.memory_full_info()
            total += getattr(info, "pss", info.uss)
    return total / 1e6


def options(text: str, *, repeat: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text.strip().splitlines()[0])
    parser.add_argument(
        "only", nargs="*", help="for report.py: the numbers of some, for example 05 06"
    )
    parser.add_argument(
        "--quick", action="store_true", help="once and short; its numbers say nothing"
    )
    parser.add_argument("--repeat", type=int, help=f"repetitions (default {repeat})")
    args = parser.parse_args()
    args.repeat = args.repeat or (1 if args.quick else repeat)
    return args


def machine() -> str:
    """One line: what this ran on, and how busy it was before."""
    from course_utils import discover

    here = discover()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{here.about}, {here.cores:g} cores; load average {load}."


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def middle(values: Iterable[float]) -> str:
    """The median and, of three values or more, the quartiles, which show the noise."""
    values = [round(value, 4) for value in values]
    if len(values) < 3:
        return f"{statistics.median(values):.3g}"
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.3g} ({low:.3g} to {high:.3g})"
