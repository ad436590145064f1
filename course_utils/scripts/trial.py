"""A script's statements, run once where nothing else has run: what they make."""

import codeop
import os
import stat
import sys
import tempfile
import time
import types
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..errors import CourseError, RankError, is_installed
from ..machine import rank_accelerator
from ..ranks import launch
from .facts import Facts, facts
from .files import Files, write

# Events of Python's audit that change files, and how many paths each begins with.
CHANGES = {"os.remove": 1, "os.rename": 2, "os.truncate": 1, "shutil.rmtree": 1}
MOST_SECONDS = 120  # that the statements may take, all together


class Piece(NamedTuple):
    """A piece of the script, and its first line in its cell."""

    text: str
    line: int = 1


class Failure(NamedTuple):
    """The piece that raises, and what it does, in words."""

    key: str
    words: str


def tried(pieces: dict[str, Piece], files: Files, names: list[str], called: str) -> Facts | Failure:
    """What the pieces make of these names, one after the other, or which one raises."""
    here, counts = rank_accelerator()
    device = here if here != "tpu" and 1 in counts else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files)
        how: dict[str, Any] = {"device": device, "init_group": False, "show": False}
        try:
            run = launch(_run, pieces, folder, names, ranks=1, time_limit=MOST_SECONDS, **how)
        except RankError as error:
            raise CourseError(
                f"{called} cannot be exported: the statements that it needs do not end well within "
                f"{MOST_SECONDS} s in a process of their own. Do such work in the function.\n"
                f"{error}"
            ) from None
    return run.results[0]


def _refuse_to_join(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("it joins a process group, in which nobody else is")


def _keep_files(began: float, event: str, given: tuple) -> None:
    """Raise where a statement, which runs once more here, would change a file of before."""
    changed = given[: CHANGES.get(event, 0)]
    if event == "open" and given[2] & os.O_ACCMODE != os.O_RDONLY:
        changed = given[:1]
    for path in changed:
        if isinstance(path, str) and os.path.exists(path):
            found = os.stat(path)
            if found.st_ctime < began and not stat.S_ISCHR(found.st_mode):  # such as /dev/null
                raise PermissionError(f"it would change {path}, which was there before")


def _run(pieces: dict[str, Piece], folder: str, names: list[str]) -> Facts | Failure:
    sys.path[:] = [folder, *filter(is_installed, sys.path)]
    os.chdir(folder)  # a script may be started anywhere
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = f"{folder}/script.py"
    # What follows from a rank's number is no value of the notebook's.
    os.environ |= {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "5"}
    for module in (dist, distributed_c10d):
        vars(module)["init_process_group"] = _refuse_to_join
    sys.addaudithook(partial(_keep_files, time.time()))
    compiled = codeop.Compile()  # which remembers imports from __future__
    for key, piece in pieces.items():
        try:
            # On the lines of its cell, which some code knows.
            exec(compiled("\n" * (piece.line - 1) + piece.text, "script", "exec"), vars(main))
        except BaseException as error:
            first = piece.text.strip().split("\n")[0]
            words = f"where nothing else has run, {first} raises {type(error).__name__}: {error}"
            return Failure(key, words)
    return facts(vars(main), names)
