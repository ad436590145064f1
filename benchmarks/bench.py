"""What the benchmarks share: a live Jupyter kernel to measure in, memory of a process tree, markdown tables."""

from __future__ import annotations

import argparse
import ast
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import psutil
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager

MB = 1e6


class Kernel:
    """A fresh ipykernel of this Python, as a notebook would use it; a context manager, so that it ends."""

    def __init__(self, folder: str, **env: str) -> None:
        specs = KernelSpecManager()
        specs.kernel_dirs = []  # only the kernel of this interpreter, whatever else is registered
        self._manager = KernelManager(kernel_name="python3", kernel_spec_manager=specs)
        self._folder, self._env = folder, dict(os.environ) | env

    def __enter__(self) -> Kernel:
        self._manager.start_kernel(cwd=self._folder, env=self._env, stderr=subprocess.DEVNULL)
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=120)
        self.pid = self._manager.provisioner.process.pid
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        family = _tree(self.pid)
        self._manager.shutdown_kernel(now=True)
        for process in family:  # peers leave processes behind
            with suppress(psutil.Error):
                process.kill()

    def run(self, code: str, *, timeout: float = 120) -> None:
        """Run a cell; raise what it raised."""
        self._value(code, None, timeout)

    def value(self, expression: str, code: str = "", *, timeout: float = 120) -> Any:
        """Run a cell, then evaluate an expression: a literal comes back."""
        return self._value(code, expression, timeout)

    def begin(self, code: str) -> Callable[[], None]:
        """Start a cell; the result waits for its end."""
        sent = self._client.execute(code, allow_stdin=False)

        def finish() -> None:
            while (reply := self._client.get_shell_msg(timeout=120))["parent_header"]["msg_id"] != sent:
                pass
            _check(reply)

        return finish

    def _value(self, code: str, expression: str | None, timeout: float) -> Any:
        reply = self._client.execute_interactive(
            code,
            timeout=timeout,
            allow_stdin=False,
            output_hook=lambda _: None,
            user_expressions={} if expression is None else {"value": f"repr({expression})"},  # IPython shortens lists
        )
        _check(reply)
        if expression is None:
            return None
        value = reply["content"]["user_expressions"]["value"]
        if value["status"] != "ok":
            raise RuntimeError(f"{expression}: {value['ename']}: {value['evalue']}")
        return ast.literal_eval(ast.literal_eval(value["data"]["text/plain"]))


def _check(reply: dict) -> None:
    if reply["content"]["status"] != "ok":
        raise RuntimeError("\n".join(reply["content"].get("traceback", [str(reply["content"])])))


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def memory(pid: int) -> float:
    """Proportional set size of a process and all its descendants, MB: shared pages are counted once, in parts.

    Where the system has no PSS (macOS, Windows), the pages of each process's own.
    """
    total = 0
    for process in _tree(pid):
        with suppress(psutil.Error):
            info = process.memory_full_info()
            total += getattr(info, "pss", info.uss)
    return total / MB


def until_idle(pid: int, *, quiet: float = 1.0, timeout: float = 90) -> float:
    """Wait until no descendant has used the CPU for `quiet` seconds; seconds until it was so."""
    began = last = time.monotonic()
    used = -1.0
    while (now := time.monotonic()) - last < quiet and now - began < timeout:
        times = 0.0
        for process in _tree(pid)[1:]:
            with suppress(psutil.Error):
                cpu = process.cpu_times()
                times += cpu.user + cpu.system
        if times > used + 0.02:
            used, last = times, now
        time.sleep(0.05)
    return last - began


def options(text: str, *, repeat: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text.strip().splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke test: everything once and short")
    parser.add_argument("--repeat", type=int, default=None, help=f"repetitions, interleaved (default {repeat})")
    args = parser.parse_args()
    args.repeat = args.repeat or (1 if args.quick else repeat)
    return args


def machine() -> str:
    """One line: what this ran on, and how busy it was."""
    from course_utils import discover

    here = discover()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"
    devices = ", ".join(device.title for device in here.devices)
    return (
        f"{here.about}; {devices}; {here.cores:g} cores and {here.memory / 2**30:.0f} GiB usable; "
        f"load average {load}"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def median(values: Iterable[float]) -> float:
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else float("nan")


def middle(values: Sequence[float]) -> str:
    """Median (lower to upper quartile), so that a reader sees the noise."""
    if len(values) < 3:
        return f"{median(values):.3g}"
    low, _, high = statistics.quantiles(values, n=4)
    return f"{median(values):.3g} ({low:.3g} to {high:.3g})"


def targets(*rows: tuple[str, float, float, str]) -> str:
    """Rows of (what, measured, at most, unit) as a table that says which ones are met."""
    return table(
        ["target", "at most", "measured", ""],
        [
            (what, f"{limit:g} {unit}", f"{value:.3g} {unit}", "met" if value <= limit else "**missed**")
            for what, value, limit, unit in rows
        ],
    )


def show(*parts: str) -> None:
    print("\n\n".join(parts), flush=True)
