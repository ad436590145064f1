"""Places of a cell's output in which the next thing shown replaces the last: what live plots and knobs draw in."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any


def shell() -> Any:
    """The notebook's shell; None in a script, a rank, or IPython in a terminal, which cannot redraw."""
    found = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return found if getattr(found, "kernel", None) is not None else None


class Place:
    """One display; it appears in the running cell when something is first shown in it."""

    def __init__(self) -> None:
        self._handle: Any = None
        self.used = False  # since whoever asks made it False

    def show(self, bundle: dict[str, str], metadata: dict | None = None) -> None:
        """Put this MIME bundle in place of the last one."""
        from IPython.display import display

        self.used = True
        if self._handle is None:
            self._handle = display(bundle, raw=True, metadata=metadata or {}, display_id=True)
        else:
            self._handle.update(bundle, raw=True, metadata=metadata or {})

    def clear(self) -> None:
        """Show nothing, if there is something."""
        if self._handle is not None:
            self.show({"text/plain": ""})


open_plots: set[Any] = set()  # that are closed when the cell ends, or the run of its knobs
_lent: Place | None = None


def place_of(plot: object) -> tuple[object, Place]:
    """Where `plot` draws from now on, and what it belongs to, this cell or knobs: it is closed when that ends."""
    if threading.current_thread() is threading.main_thread():  # a plot of another thread may outlive the cell
        open_plots.add(plot)
        shell().events.register("post_run_cell", close_all)  # a second time changes nothing
    return (_lent, _lent) if _lent is not None else (shell().execution_count, Place())


def close_all(*_: object) -> None:
    """Close the plots that nobody closed."""
    for plot in [*open_plots]:
        plot.close()


@contextlib.contextmanager
def drawing_in(place: Place) -> Iterator[None]:
    """Let live plots draw in this place, and close those that are left open."""
    global _lent
    _lent, place.used = place, False
    try:
        yield
    finally:
        _lent = None
        close_all()
