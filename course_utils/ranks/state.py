"""What a rank has of the notebook's process beside the function: each as (read it, set it).

What is not here a rank does not have: random seeds, attributes set on modules, open files. What a
rank changes stays in it.
"""

import linecache
import logging
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import psutil

from ..errors import CourseError

INLINE = "module://matplotlib_inline"  # how IPython's backend begins, which needs a page
# Loggers that libraries set up in each process, and warnings of the notebook's shell.
LIBRARIES = re.compile(r"(torch|strobelight|tornado|traitlets|IPKernelApp|asyncio)(\.|$)|c10d-")
SHELL = ("IPython", "ipykernel")

Logger = tuple[str, int, bool, bool, list, list[tuple]]
Precision = tuple[Any, str, int]
Numpy = tuple[dict[str, Any], dict[str, Any]] | None


def read(env: dict[str, str]) -> bytes:
    """The state of this process and, in its environment, `env`."""
    settings = {name: get() for name, (get, _) in STATE.items()}
    settings["environment"] |= env
    return cloudpickle.dumps(settings)


def restore(state: bytes, threads: int, **env: str) -> None:
    """Set it in this process, and read again what torch reads when it is imported.

    Args:
        threads: for torch's operations.
    """
    import torch
    import torch.distributed as dist

    settings = cloudpickle.loads(state)
    settings["environment"] |= env
    for name, value in settings.items():
        STATE[name][1](value)

    torch.set_num_threads(threads)
    dist.set_debug_level_from_env()
    if "TORCH_LOGS" in os.environ:
        torch._logging._init_logs()
    # A fork has the server's random state; unseeded ranks are to differ, as under torchrun.
    torch.default_generator.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def threads(share: int) -> int:
    """For torch's operations in a rank that has this share of the cores.

    OMP_NUM_THREADS decides where the notebook has set it; where it came with the kernel, which a
    host may have limited, a rank has no more threads than it says.
    """
    found = re.match(r"\d+", os.environ.get("OMP_NUM_THREADS", ""))
    if not found or int(found[0]) < 1:
        return max(1, share)
    given = psutil.Process().environ().get("OMP_NUM_THREADS") == os.environ["OMP_NUM_THREADS"]
    return max(1, min(share, int(found[0]))) if given else int(found[0])


def _set_environment(env: dict[str, str]) -> None:
    if env.get("MPLBACKEND", "").startswith(INLINE):
        env["MPLBACKEND"] = "module://course_utils.ranks.figures"
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # TMPDIR counts
    time.tzset()  # and TZ


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise CourseError(
            "the folder that this notebook works in is gone (deleted or renamed), and ranks start "
            "there: os.chdir(…) to one that exists, or open the notebook from its new place"
        ) from None


def _cells() -> dict[str, tuple]:
    """The notebook's cells, for tracebacks, without the hook by which IPython keeps them fresh."""
    return {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None
    }


def _loggers() -> list[Logger]:
    """Those that were set up here, as (name, level, …, filters, handlers)."""
    found: list[Logger] = []
    for name, logger in {"": logging.root, **logging.root.manager.loggerDict}.items():
        if LIBRARIES.match(name) or not isinstance(logger, logging.Logger):
            continue
        handlers = [one for one in logger.handlers if not isinstance(one, logging.NullHandler)]
        filters = [*filter(_can_be_sent, logger.filters)]
        if handlers or filters or logger.level or logger.disabled or not logger.propagate:
            parts = [*map(_parts_of, handlers)]
            found.append((name, logger.level, logger.propagate, logger.disabled, filters, parts))
    return found


def _torch_levels() -> dict[str, int]:
    """Those of torch's loggers, which keep the handlers that each process gives them."""
    loggers = logging.root.manager.loggerDict.items()
    levels = {name: getattr(one, "level", 0) for name, one in loggers if name.startswith("torch")}
    return {name: level for name, level in levels.items() if level}


def _set_torch_levels(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        _set_level(logging.getLogger(name), level)


def _set_level(logger: logging.Logger, level: int) -> None:
    if logger.level != level:  # for all loggers this takes a millisecond
        logger.setLevel(level)


def _parts_of(handler: logging.Handler) -> tuple[type, dict[str, Any], str]:
    """What `_handler` makes another one from; of one that cannot be sent, one that prints."""
    attributes = {
        name: value for name, value in vars(handler).items() if name not in ("lock", "stream")
    }
    if isinstance(handler, logging.FileHandler):
        attributes["mode"] = "a"
        _append(handler)
    stream = str(getattr(getattr(handler, "stream", None), "name", ""))
    if not _can_be_sent((type(handler), attributes)):
        plain = logging.StreamHandler()
        plain.setLevel(handler.level)
        if _can_be_sent(handler.formatter):
            plain.setFormatter(handler.formatter)
        return _parts_of(plain)
    return type(handler), attributes, "stdout" if "stdout" in stream else "stderr"


def _can_be_sent(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # a handler, a filter or a factory may hold anything
        return False
    return True


def _append(handler: logging.FileHandler) -> None:
    """Or the notebook would write over what its ranks have written to the same file."""
    import fcntl

    if handler.stream is not None:
        flags = fcntl.fcntl(handler.stream, fcntl.F_GETFL)
        fcntl.fcntl(handler.stream, fcntl.F_SETFL, flags | os.O_APPEND)


def _handler(kind: Any, attributes: dict[str, Any], stream: str) -> logging.Handler:
    handler = kind.__new__(kind)
    vars(handler).update(attributes)
    handler.createLock()
    if isinstance(handler, logging.FileHandler):
        vars(handler)["stream"] = None  # opened at the first record
    elif isinstance(handler, logging.StreamHandler):
        handler.stream = getattr(sys, stream)
    logging._addHandlerRef(handler)  # ty: ignore[missing-attribute]
    return handler


def _set_loggers(loggers: list[Logger]) -> None:
    for name, level, propagate, disabled, filters, handlers in loggers:
        logger = logging.getLogger(name)
        _set_level(logger, level)
        logger.propagate, logger.disabled = propagate, disabled
        logger.filters[:] = filters
        logger.handlers[:] = [_handler(*parts) for parts in handlers]


def _set_level_names(names: dict[int, str]) -> None:
    for level, name in names.items():
        logging.addLevelName(level, name)


def _factory(get: Callable[[], Callable], pythons_own: Callable) -> Callable:
    """Python's own in place of one that cannot be sent."""
    factory = get()
    return factory if _can_be_sent(factory) else pythons_own


def _filters() -> list[tuple]:
    return [one for one in warnings.filters if not one[2].__module__.startswith(SHELL)]


def _set_filters(filters: list[tuple]) -> None:
    warnings.resetwarnings()
    warnings.filters[:] = filters  # ty: ignore[invalid-assignment]


def _precision() -> Precision:
    import torch

    with warnings.catch_warnings(action="ignore"):  # torch 2.9 has another name for it, too
        matmul = torch.get_float32_matmul_precision()
    return torch.get_default_dtype(), matmul, torch.get_deterministic_debug_mode()


def _set_precision(precision: Precision) -> None:
    import torch

    dtype, matmul, deterministic = precision
    torch.set_default_dtype(dtype)
    with warnings.catch_warnings(action="ignore"):
        torch.set_float32_matmul_precision(matmul)
    if deterministic:
        torch.use_deterministic_algorithms(True, warn_only=deterministic == 1)


def _torch() -> tuple[str, bool, bool, bool, dict[str, Any]]:
    import torch

    return (
        torch.get_default_device().type,
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        vars(torch._tensor_str.PRINT_OPTS),
    )


def _set_torch(settings: tuple[str, bool, bool, bool, dict[str, Any]]) -> None:
    """An accelerator is the default device of ranks that have one, each its own."""
    import torch

    device, grad, anomaly, check_nan, printing = settings
    if device in ("meta", os.environ.get("COURSE_DEVICE")) and device != "cpu":
        torch.set_default_device(device)
    torch.set_grad_enabled(grad)
    torch.autograd.set_detect_anomaly(anomaly, check_nan)
    torch.set_printoptions(**printing)


def _numpy() -> Numpy:
    """Only if it is imported."""
    numpy = sys.modules.get("numpy")
    return (numpy.geterr(), numpy.get_printoptions()) if numpy else None


def _set_numpy(settings: Numpy) -> None:
    if settings:
        import numpy

        errors, printing = settings
        numpy.seterr(**errors)
        numpy.set_printoptions(**printing)


def _main() -> dict[str, Any]:
    """What tells the program's file, to relative imports and to processes that are spawned."""
    main = vars(sys.modules["__main__"])
    known = {name: main.get(name) for name in ("__file__", "__package__", "__spec__")}
    return {name: value for name, value in known.items() if value and _can_be_sent(value)}


def _hooks() -> Any:
    from torch.utils.hooks import RemovableHandle

    return RemovableHandle


STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "environment": (lambda: dict(os.environ), _set_environment),
    "folder": (_folder, os.chdir),
    "main": (_main, lambda known: vars(sys.modules["__main__"]).update(known)),
    "cells": (_cells, linecache.cache.update),
    "disabled levels": (lambda: logging.root.manager.disable, logging.disable),
    "level names": (lambda: logging._levelToName, _set_level_names),
    "record factory": (
        partial(_factory, logging.getLogRecordFactory, logging.LogRecord),
        logging.setLogRecordFactory,
    ),
    "logger class": (
        partial(_factory, logging.getLoggerClass, logging.Logger),
        logging.setLoggerClass,
    ),
    "loggers": (_loggers, _set_loggers),
    "levels of torch's loggers": (_torch_levels, _set_torch_levels),
    "captured warnings": (
        lambda: vars(logging)["_warnings_showwarning"] is not None,
        logging.captureWarnings,
    ),
    "warnings": (_filters, _set_filters),
    "precision": (_precision, _set_precision),
    "torch": (_torch, _set_torch),
    "numbers of hooks": (
        lambda: _hooks().next_id,
        lambda number: setattr(_hooks(), "next_id", number),
    ),
    "numpy": (_numpy, _set_numpy),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
}
