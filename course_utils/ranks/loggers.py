"""The notebook's loggers, as a rank has them: levels, filters, and handlers that write to a stream
or to a file. A handler of any other kind is one that prints in a rank.
"""

import logging
import os
import pickle
import re
import sys
from typing import Any, NamedTuple

import cloudpickle

from .left_out import LeftOut

# Loggers that libraries set up in each process, and those of the notebook's shell.
LIBRARIES = re.compile(r"(torch|tornado|traitlets|IPKernelApp|asyncio)(\.|$)|c10d-|strobelight")
STREAMS = ("stdout", "stderr")


class Handler(NamedTuple):
    """What a rank makes a handler from."""

    place: str  # one of STREAMS, or the path of a file
    encoding: str | None  # of the file
    errors: str | None  # what is written for a character that the encoding lacks
    level: int
    formatters: list[logging.Formatter]  # one, or none
    filters: list[Any]


class Logger(NamedTuple):
    """What a rank sets of a logger."""

    name: str
    level: int
    propagate: bool
    disabled: bool
    filters: list[Any]
    handlers: list[Handler] | None  # None: those that each process gives it


def read(left_out: LeftOut) -> list[Logger]:
    """The loggers that were set up here."""
    if logging.getLogRecordFactory() is not logging.LogRecord:
        left_out.append("the factory of log records")
    if logging.getLoggerClass() is not logging.Logger:
        left_out.append("the class of new loggers")
    found: list[Logger] = []
    for name, logger in [("", logging.root), *logging.root.manager.loggerDict.items()]:
        with left_out.unless(label(name)):
            if isinstance(logger, logging.Logger) and _is_set_up(logger):
                found.append(_parts_of(name, logger, left_out))
    return found


def label(name: str) -> str:
    return f"logger {name or 'root'}"


def _is_set_up(logger: logging.Logger) -> bool:
    if LIBRARIES.match(logger.name):
        return logger.name.startswith("torch") and logger.level > 0
    handlers = [one for one in logger.handlers if not isinstance(one, logging.NullHandler)]
    return bool(
        logger.level or logger.filters or logger.disabled or not logger.propagate or handlers
    )


def _parts_of(name: str, logger: logging.Logger, left_out: LeftOut) -> Logger:
    switches = int(logger.level), bool(logger.propagate), bool(logger.disabled)
    if LIBRARIES.match(name):
        return Logger(name, *switches, [], None)
    handlers: list[Handler] = []
    for handler in logger.handlers:
        of_it = f"the {type(handler).__name__} of {label(name)}"
        with left_out.unless(of_it):
            if not isinstance(handler, logging.NullHandler):
                handlers.append(_parts_of_handler(handler, of_it, left_out))
    filters = _sendable(logger.filters, label(name), left_out)
    return Logger(name, *switches, filters, handlers)


def _parts_of_handler(handler: logging.Handler, name: str, left_out: LeftOut) -> Handler:
    place, encoding, errors = "stderr", None, None
    if isinstance(handler, logging.FileHandler) and _is_plain(handler):
        place, encoding = str(handler.baseFilename), handler.encoding
        errors = handler.errors
        _append(handler)
    elif "stdout" in str(getattr(getattr(handler, "stream", None), "name", "")):
        place = "stdout"
    formatters = [handler.formatter] if handler.formatter else []
    return Handler(
        place,
        encoding,
        errors,
        int(handler.level),
        _sendable(formatters, name, left_out),
        _sendable(handler.filters, name, left_out),
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


def _sendable(values: list[Any], of: str, left_out: LeftOut) -> list[Any]:
    """Those that another process can open."""
    found: list[Any] = []
    for value in values:
        with left_out.unless(f"the {type(value).__name__} of {of}"):
            pickle.loads(cloudpickle.dumps(value))
            found.append(value)
    return found


def restore(found: Logger, left_out: LeftOut) -> None:
    """Set up the same one here."""
    logger = logging.getLogger(found.name)
    if logger.level != found.level:  # setting it empties the caches of all loggers
        logger.setLevel(found.level)
    if found.handlers is None:
        return
    logger.propagate, logger.disabled = found.propagate, found.disabled
    logger.filters[:] = found.filters
    logger.handlers.clear()
    for parts in found.handlers:
        with left_out.unless(f"the handler for {parts.place} of {label(found.name)}"):
            logger.addHandler(_handler(parts))


def _handler(parts: Handler) -> logging.Handler:
    handler: logging.Handler
    if parts.place in STREAMS:
        handler = logging.StreamHandler(getattr(sys, parts.place))
    else:  # opened at the first record
        handler = logging.FileHandler(
            parts.place, "a", parts.encoding, delay=True, errors=parts.errors
        )
    handler.setLevel(parts.level)
    handler.filters[:] = parts.filters
    for formatter in parts.formatters:
        handler.setFormatter(formatter)
    return handler
