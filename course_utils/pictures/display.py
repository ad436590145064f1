"""Places of a cell's output in which the next thing shown replaces the last: what live plots and
knobs draw in.
"""

import contextlib
import sys
from collections.abc import Generator, Mapping
from typing import Any


def shell() -> Any:
    """The notebook's shell; None in a script, a rank, or IPython in a terminal, which cannot
    redraw.
    """
    if "IPython" not in sys.modules:
        return None
    found = sys.modules["IPython"].get_ipython()
    return found if getattr(found, "kernel", None) is not None else None


class Display:
    """One display; it appears in the running cell when something is first shown in it."""

    _handle: Any = None

    def show(self, bundle: Mapping[str, str | bytes], metadata: dict | None = None) -> None:
        """Put this MIME bundle in place of the last one."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display(bundle, raw=True, metadata=metadata, display_id=True)
        else:
            self._handle.update(bundle, raw=True, metadata=metadata)

    def clear(self) -> None:
        """Show nothing, if there is something."""
        if self._handle is not None:
            self.show({"text/plain": ""})


_plots: set[Any] = set()  # that draw in this cell, or in its knobs
_lent: Display | None = None


def display_of(plot: Any) -> Display:
    """Where `plot` draws until the cell ends, or the run of its knobs; then it is closed."""
    _plots.add(plot)
    shell().events.register("post_run_cell", close_all)  # a second time changes nothing
    return _lent or Display()


def close_all(*_: object) -> None:
    while _plots:
        plot = _plots.pop()
        plot.close()
        plot.display = None


@contextlib.contextmanager
def drawing_in(display: Display) -> Generator[None]:
    """Let live plots draw in this display, and close those that are left open."""
    global _lent
    _lent = display
    try:
        yield
    finally:
        _lent = None
        close_all()
