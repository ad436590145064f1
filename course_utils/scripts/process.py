"""What was set for the whole process of the kernel, as lines of the script."""

import ast
import logging
import os
import re
from collections.abc import Iterator

import psutil
import torch

from .cells import Statement
from .literals import literal

SETS = re.compile(
    r"(warnings\.(filterwarnings|simplefilter)|logging\.(basicConfig|captureWarnings))\("
)
# torchrun sets these for each rank, as a launch does.
OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def sets_the_process(statement: Statement) -> bool:
    """Whether it is a call that sets filters of warnings, or the root's handler of logs."""
    return isinstance(statement.node, ast.Expr) and SETS.match(statement.text) is not None


def torch_settings() -> Iterator[str]:
    for call, now, usual in _settings():
        if now != usual:
            yield f"torch.{call}({now})"


def logger_levels(statements: list[Statement]) -> Iterator[str]:
    """Of the root and of loggers that cells name."""
    text = "\n".join(one.text for one in statements)
    if "logging" not in text:
        return
    if disabled := logging.root.manager.disable:
        yield f"logging.disable({disabled})"
    for name, logger in [("", logging.root), *sorted(logging.root.manager.loggerDict.items())]:
        usual = 0 if name else logging.WARNING
        level = getattr(logger, "level", usual)
        if level != usual and (name in text or name == "__main__"):
            yield f"logging.getLogger({literal(name)}).setLevel({level})"


def environment_variables(statements: list[Statement]) -> Iterator[str]:
    """Of those that cells name, what has changed since the kernel began: others are its own, or a
    library's.
    """
    before = psutil.Process().environ()
    words = {word for one in statements for word in re.findall(r"\w\w+", one.text)}
    begun = tuple(word for word in words if word.endswith("_"))  # f"MY_{number}"
    for name in sorted((before.keys() | os.environ.keys()).difference(OF_TORCHRUN)):
        now = os.environ.get(name)
        if not (name in words or name.startswith(begun)):
            continue
        if now is None:
            yield f"os.environ.pop({literal(name)}, None)"
        elif now != before.get(name):
            yield f"os.environ[{literal(name)}] = {literal(now)}"


def _settings() -> Iterator[tuple[str, str, str]]:
    """(how to set it, what it is now, what it is in a new process) of torch's settings."""
    yield "set_default_dtype", repr(torch.get_default_dtype()), "torch.float32"
    yield "set_default_device", f'"{torch.get_default_device().type}"', '"cpu"'
    yield "set_float32_matmul_precision", f'"{torch.get_float32_matmul_precision()}"', '"highest"'
    yield "set_deterministic_debug_mode", repr(torch.get_deterministic_debug_mode()), "0"
    yield "set_grad_enabled", repr(torch.is_grad_enabled()), "True"
    yield "autograd.set_detect_anomaly", repr(torch.is_anomaly_enabled()), "False"
