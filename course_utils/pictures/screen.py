"""Places of a cell's output in which the next thing shown replaces the last: what live plots and knobs draw in."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


def shell() -> Any:
    """The notebook's shell; None in a script, a rank, or IPython in a terminal, which cannot redraw."""
    found = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return found if getattr(found, "kernel", None) is not None else None


class Place:
    """One display; it appears in the running cell when something is first shown in it."""

    _handle: Any = None

    def show(self, bundle: dict[str, str], metadata: dict | None = None) -> None:
        """Put this MIME bundle in place of the last one."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display(bundle, raw=True, metadata=metadata or {}, display_id=True)
        else:
            self._handle.update(bundle, raw=True, metadata=metadata or {})

    def clear(self) -> None:
        """Show nothing, if there is something."""
        if self._handle is not None:
            self.show({"text/plain": ""})


_plots: set[Any] = set()  # that draw in this cell, or in its knobs
_lent: Place | None = None


def place_of(plot: Any) -> Place:
    """Where `plot` draws until the cell ends, or the run of its knobs; then it is closed, and has no place."""
    _plots.add(plot)
    shell().events.register("post_run_cell", close_all)  # a second time changes nothing
    return _lent or Place()


def close_all(*_: object) -> None:
    while _plots:
        plot = _plots.pop()
        plot.close()
        plot.place = None


@contextlib.contextmanager
def drawing_in(place: Place) -> Iterator[None]:
    """Let live plots draw in this place, and close those that are left open."""
    global _lent
    _lent = place
    try:
        yield
    finally:
        _lent = None
        close_all()
