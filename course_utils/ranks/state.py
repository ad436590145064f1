"""What a rank has of the notebook's process beside the function.

What is not here a rank does not have: random seeds, attributes set on modules, open files. What a
rank changes stays in it. Each setting is read, sent and set under a guard, because anybody's
classes may be in it.
"""

import builtins
import linecache
import logging
import multiprocessing.process
import os
import pickle
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import cloudpickle
import psutil

from ..errors import CourseError
from . import loggers, server
from .left_out import LeftOut

INLINE = b"module://matplotlib_inline"  # how IPython's backend begins, which needs a page
OF_A_THREAD = ("torch's default device", "whether gradients are recorded")
SHELL = ("IPython", "ipykernel")  # whose warnings filters are the notebook's own


class State(NamedTuple):
    """Of the notebook's process, for `restore`."""

    environment: dict[bytes, bytes | None]  # what the server has not, or differs; None: nothing
    folder: str
    settings: dict[str, bytes]  # pickles, by their names in `_settings`; and of loggers


Setting = tuple[str, Callable[[], Any], Callable[[Any], object]]  # its name, read it, set it

_of_the_server: dict[str, bytes] = {}  # its settings


def keep() -> None:
    """Let ranks that are forked from this process know its settings: they set what differs."""
    _of_the_server.update(_read_settings(LeftOut()))


def read(env: dict[str, str]) -> State:
    """The state of this process and, in its environment, `env`; what is left out is printed."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise CourseError(
            "the folder that this notebook works in is gone (deleted or renamed), and ranks start "
            "there: os.chdir(…) to one that exists, or open the notebook from its new place"
        ) from None
    environment = {**os.environb}
    environment.pop(b"FORCE_COLOR", None)  # ipykernel's: rich would take a pipe for a terminal
    if environment.get(b"MPLBACKEND", b"").startswith(INLINE):
        environment[b"MPLBACKEND"] = b"module://course_utils.ranks.figures"
    environment |= {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    differs: dict[bytes, bytes | None] = dict(environment.items() - server.environment.items())
    differs |= dict.fromkeys(server.environment.keys() - environment.keys())

    left_out = LeftOut()
    settings = _read_settings(left_out)
    left_out.tell()
    return State(differs, folder, settings)


def _read_settings(left_out: LeftOut) -> dict[str, bytes]:
    settings: dict[str, bytes] = {}
    for name, get, _ in _settings():
        with left_out.unless(name):
            settings[name] = _pickled(name, get(), left_out)
    for logger in loggers.read(left_out):
        settings[loggers.label(logger.name)] = cloudpickle.dumps(logger)
    return settings


def restore(state: State, threads: int, **env: str) -> LeftOut:
    """Set it in this process, and read again what torch reads when it is imported.

    Args:
        threads: for torch's operations.
        env: variables of this process alone.

    Returns:
        What could not be set.
    """
    import torch
    import torch.distributed as dist

    own = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    _set_environment(state.environment | own)
    left_out = LeftOut()
    with left_out.unless(f"the folder {state.folder}"):
        os.chdir(state.folder)
        # Where `multiprocessing` looks for the program, once that has changed the folder.
        multiprocessing.process.ORIGINAL_DIR = state.folder  # ty: ignore[missing-attribute]
    differs = {
        name: pickled
        for name, pickled in state.settings.items()  # sys.path first, which others need
        if pickled != _of_the_server.get(name)
    }
    _set(differs, left_out)

    torch.set_num_threads(threads)
    dist.set_debug_level_from_env()
    if "TORCH_LOGS" in os.environ:
        torch._logging._init_logs()
    # A fork has the server's random state; unseeded ranks are to differ, as under torchrun.
    seed = torch.default_generator.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    return left_out


def settle(state: State) -> None:
    """Set once more what libraries have set up for themselves, which the call has imported."""
    settled = {
        name: pickled
        for name, pickled in state.settings.items()
        if name.startswith(("warnings filters", "logger "))
    }
    _set(settled, LeftOut())  # which has been told


def set_for_thread(state: State) -> None:
    """Set once more what torch keeps for each thread, such as a virtual core."""
    _set({name: state.settings[name] for name in OF_A_THREAD if name in state.settings}, LeftOut())


def _set(settings: dict[str, bytes], left_out: LeftOut) -> None:
    changes = {name: change for name, _, change in _settings()} if settings else {}
    of_logger = partial(loggers.restore, left_out=left_out)
    for name, pickled in settings.items():
        with left_out.unless(name):
            changes.get(name, of_logger)(pickle.loads(pickled))


def _pickled(name: str, setting: Any, left_out: LeftOut) -> bytes:
    """A pickle of it; of a list or a dict without the entries that cannot be sent."""
    try:
        return cloudpickle.dumps(setting)
    except Exception:
        if not isinstance(setting, list | dict):
            raise
    kept = []
    for entry in setting.items() if isinstance(setting, dict) else setting:
        with left_out.unless(f"an entry of {name}"):
            cloudpickle.dumps(entry)
            kept.append(entry)
    return cloudpickle.dumps(type(setting)(kept))


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


def _set_environment(env: dict[bytes, bytes | None]) -> None:
    for name, value in env.items():
        if value is None:
            os.environb.pop(name, None)
        else:
            os.environb[name] = value
    tempfile.tempdir = None  # TMPDIR counts
    if b"TZ" in env:
        time.tzset()


def _settings() -> Iterator[Setting]:
    """What Python, torch and NumPy keep for the process. A rank sets what differs there."""
    import torch

    yield "sys.path", _path, partial(setattr, sys, "path")
    yield "sys.argv", lambda: sys.argv, partial(setattr, sys, "argv")
    yield "the program's file", _main, vars(sys.modules["__main__"]).update
    yield "the text of cells", _cells, linecache.cache.update
    yield "the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit
    yield "warnings filters", _filters, _set_filters
    yield "captured warnings", _are_warnings_captured, logging.captureWarnings
    yield "disabled logging", lambda: logging.root.manager.disable, logging.disable

    yield "torch's default dtype", torch.get_default_dtype, torch.set_default_dtype
    yield "torch's matmul precision", _matmul, _set_matmul
    determinism = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    yield "deterministic algorithms", *determinism
    yield "torch's default device", lambda: torch.get_default_device().type, _set_device
    yield "whether gradients are recorded", torch.is_grad_enabled, torch.set_grad_enabled
    yield "anomaly detection", _anomaly, lambda found: torch.autograd.set_detect_anomaly(*found)
    options = vars(torch._tensor_str.PRINT_OPTS)
    yield "how torch prints", lambda: {**options}, lambda found: torch.set_printoptions(**found)
    sharing = torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy
    yield "how torch shares memory", *sharing

    hooks = torch.utils.hooks.RemovableHandle
    yield "numbers of hooks", lambda: hooks.next_id, partial(setattr, hooks, "next_id")

    if numpy := sys.modules.get("numpy"):
        yield "NumPy's errors", numpy.geterr, lambda found: numpy.seterr(**found)
        printing = numpy.get_printoptions, lambda found: numpy.set_printoptions(**found)
        yield "how NumPy prints", *printing


def _path() -> list[str]:
    """None of it depends on the folder, which a rank may change. Python reads texts only."""
    texts = [path for path in sys.path if isinstance(path, str)]
    found = [getattr(sys.path_importer_cache.get(path), "path", path) for path in texts]
    return [path or os.getcwd() for path in found]


def _main() -> dict[str, Any]:
    """What tells the program's file, to relative imports and to processes that are spawned."""
    main = vars(sys.modules["__main__"])
    known = {name: main[name] for name in ("__file__", "__package__", "__spec__") if main.get(name)}
    if "__file__" in known:
        started = multiprocessing.process.ORIGINAL_DIR  # ty: ignore[missing-attribute]
        known["__file__"] = os.path.join(started or "", known["__file__"])
    return known


def _cells() -> dict[str, tuple]:
    """The notebook's cells, for tracebacks, without the hook by which IPython keeps them fresh."""
    return {
        name: entry
        for name, entry in linecache.cache.copy().items()
        if isinstance(entry, tuple) and len(entry) == 4 and entry[1] is None
    }


def _filters() -> list[tuple]:
    """With the name of a category in place of one that has a module: to open it imports all of a
    library, which takes seconds.
    """
    found: list[tuple] = []
    for action, message, category, *rest in warnings.filters:
        module = category.__module__
        if module.startswith(SHELL):
            continue
        known: Any = category
        if module != "__main__":
            known = module, known.__name__
        found.append((action, message, known, *rest))
    return found


def _set_filters(filters: list[tuple]) -> None:
    """Those whose category this process knows by now."""
    known = []
    for action, message, category, *rest in filters:
        if isinstance(category, tuple):
            module, name = category
            category = vars(sys.modules.get(module, builtins)).get(name)
        if category is not None:
            known.append((action, message, category, *rest))
    warnings.resetwarnings()
    warnings.filters[:] = known  # ty: ignore[invalid-assignment]


def _are_warnings_captured() -> bool:
    return vars(logging)["_warnings_showwarning"] is not None


def _matmul() -> str:
    import torch

    with warnings.catch_warnings(action="ignore"):  # torch 2.9 has another name for it, too
        return torch.get_float32_matmul_precision()


def _set_matmul(precision: str) -> None:
    import torch

    with warnings.catch_warnings(action="ignore"):
        torch.set_float32_matmul_precision(precision)


def _set_device(kind: str) -> None:
    """An accelerator is the default device of ranks that have one, each its own."""
    import torch

    if kind in ("meta", os.environ.get("COURSE_DEVICE")):
        torch.set_default_device(kind)


def _anomaly() -> tuple[bool, bool]:
    import torch

    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
