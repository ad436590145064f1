"""The one place of a cell's output that a live plot writes to, again and again."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any


class Screen:
    """One display in the running cell; silent outside a notebook."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._cell: object = None
        self._ended: Callable[..., None] | None = None

    @staticmethod
    def shell() -> Any:
        """The notebook's shell; None in a script, a rank, or IPython in a terminal, which cannot redraw."""
        if (module := sys.modules.get("IPython")) is None:
            return None
        shell = module.get_ipython()
        return shell if getattr(shell, "kernel", None) is not None else None

    def enter(self, close: Callable[[], None]) -> None:
        """Write to the running cell from now on, below what it printed so far; call `close` when the cell ends.

        Not when a cell ends while a plot of another thread still runs.
        """
        if (shell := self.shell()) is None:
            return
        if self._cell != shell.execution_count:
            self._handle, self._cell = None, shell.execution_count
        if self._ended is None and threading.current_thread() is threading.main_thread():
            self._ended = lambda *_: close()
            shell.events.register("post_run_cell", self._ended)

    def leave(self) -> None:
        """Forget what `enter` arranged; the display stays."""
        ended, self._ended = self._ended, None
        if ended is not None and (shell := self.shell()) is not None:
            with contextlib.suppress(ValueError):  # the events were reset in between
                shell.events.unregister("post_run_cell", ended)

    def show(self, bundle: dict[str, str], metadata: dict | None = None) -> None:
        """Put this MIME bundle in place of the last one."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display(bundle, raw=True, metadata=metadata or {}, display_id=True)
        else:
            self._handle.update(bundle, raw=True, metadata=metadata or {})
