"""The notebook's loggers, as a rank has them: levels, filters, and handlers that write to a stream
or to a file. A handler of any other kind is one that prints in a rank.
"""

import logging
import os
import pickle
import re
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import cloudpickle

from ..style import size
from .left_out import LeftOut

# Loggers that libraries set up in each process, and those of the notebook's shell.
LIBRARIES = re.compile(r"(torch|strobelight|tornado|traitlets|IPKernelApp|asyncio)(\.|$)|c10d-")
STREAMS = ("stdout", "stderr")
LARGE = 1 << 20  # bytes; who holds a data set is not sent to every rank

Part = tuple[str, bytes]  # "the filter Secret of logger train", and its pickle


class Handler(NamedTuple):
    """What a rank makes a handler from."""

    place: str  # one of STREAMS, or the path of a file
    encoding: str | None  # of the file
    level: int
    formatter: list[Part]  # one, or none
    filters: list[Part]


class Logger(NamedTuple):
    """What a rank sets of a logger."""

    name: str
    level: int
    propagate: bool
    disabled: bool
    filters: list[Part]
    handlers: list[Handler]


def read(left_out: LeftOut) -> tuple[list[Logger], dict[str, int]]:
    """The loggers that were set up here; and the levels of torch's, which keep the handlers that
    each process gives them.
    """
    if logging.getLogRecordFactory() is not logging.LogRecord:
        left_out.append("the factory of log records")
    if logging.getLoggerClass() is not logging.Logger:
        left_out.append("the class of new loggers")
    found: list[Logger] = []
    levels: dict[str, int] = {}
    for name, logger in [("", logging.root), *logging.root.manager.loggerDict.items()]:
        label = f"logger {name or 'root'}"
        with left_out.unless(label):
            if not isinstance(logger, logging.Logger):
                continue
            if name.startswith("torch") and logger.level:
                levels[name] = int(logger.level)
            if not LIBRARIES.match(name) and _is_set_up(logger):
                found.append(_parts_of(name, logger, label, left_out))
    return found, levels


def _is_set_up(logger: logging.Logger) -> bool:
    return bool(
        logger.level
        or logger.filters
        or logger.disabled
        or not logger.propagate
        or not all(isinstance(one, logging.NullHandler) for one in logger.handlers)
    )


def _parts_of(name: str, logger: logging.Logger, label: str, left_out: LeftOut) -> Logger:
    handlers: list[Handler] = []
    for handler in logger.handlers:
        of_it = f"the {type(handler).__name__} of {label}"
        with left_out.unless(of_it):
            if not isinstance(handler, logging.NullHandler):
                handlers.append(_parts_of_handler(handler, of_it, left_out))
    filters = _pickled("filter", logger.filters, label, left_out)
    switches = int(logger.level), bool(logger.propagate), bool(logger.disabled)
    return Logger(name, *switches, filters, handlers)


def _parts_of_handler(handler: logging.Handler, label: str, left_out: LeftOut) -> Handler:
    place, encoding = "stderr", None
    if isinstance(handler, logging.FileHandler) and _is_plain(handler):
        place, encoding = str(handler.baseFilename), handler.encoding
        _append(handler)
    elif "stdout" in str(getattr(getattr(handler, "stream", None), "name", "")):
        place = "stdout"
    formatters = [handler.formatter] if handler.formatter else []
    return Handler(
        place,
        encoding,
        int(handler.level),
        _pickled("formatter", formatters, label, left_out),
        _pickled("filter", handler.filters, label, left_out),
    )


def _is_plain(handler: logging.FileHandler) -> bool:
    """Whether its file is text, and not, for example, compressed by a class of one's own."""
    return type(handler)._open is logging.FileHandler._open


def _append(handler: logging.FileHandler) -> None:
    """Or the notebook would write over what its ranks have written to the same file."""
    import fcntl

    if handler.stream is not None:
        flags = fcntl.fcntl(handler.stream, fcntl.F_GETFL)
        fcntl.fcntl(handler.stream, fcntl.F_SETFL, flags | os.O_APPEND)


def _pickled(what: str, values: Iterable[Any], label: str, left_out: LeftOut) -> list[Part]:
    parts: list[Part] = []
    for value in values:
        name = f"the {what} {type(value).__name__} of {label}"
        with left_out.unless(name):
            pickled = cloudpickle.dumps(value)
            if len(pickled) > LARGE:
                raise ValueError(f"it takes {size(len(pickled))}")
            parts.append((name, pickled))
    return parts


def _unpickled(parts: list[Part], left_out: LeftOut) -> list[Any]:
    values: list[Any] = []
    for name, pickled in parts:
        with left_out.unless(name):
            values.append(pickle.loads(pickled))
    return values


def restore(loggers: list[Logger], levels: dict[str, int], left_out: LeftOut) -> None:
    """Set up the same ones here."""
    for one in loggers:
        logger = logging.getLogger(one.name)
        _set_level(logger, one.level)
        logger.propagate, logger.disabled = one.propagate, one.disabled
        logger.filters[:] = _unpickled(one.filters, left_out)
        logger.handlers.clear()
        for parts in one.handlers:
            with left_out.unless(f"the handler for {parts.place} of logger {one.name or 'root'}"):
                logger.addHandler(_handler(parts, left_out))
    for name, level in levels.items():
        _set_level(logging.getLogger(name), level)


def _handler(parts: Handler, left_out: LeftOut) -> logging.Handler:
    handler: logging.Handler
    if parts.place in STREAMS:
        handler = logging.StreamHandler(getattr(sys, parts.place))
    else:  # opened at the first record
        handler = logging.FileHandler(parts.place, "a", parts.encoding, delay=True)
    handler.setLevel(parts.level)
    handler.filters[:] = _unpickled(parts.filters, left_out)
    for formatter in _unpickled(parts.formatter, left_out):
        handler.setFormatter(formatter)
    return handler


def _set_level(logger: logging.Logger, level: int) -> None:
    if logger.level != level:  # setting it empties the caches of all loggers, which takes long
        logger.setLevel(level)
