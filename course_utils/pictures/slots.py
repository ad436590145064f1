"""What a run shows and prints, in places of a cell's output that the next run writes to again."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

MOST_TEXT = 100_000  # characters kept of what is printed between two displays: the last ones
SHOW_EVERY = 0.1  # seconds between two updates of what is printed


class Slots:
    """The first display of a run takes the first slot, and so on; what is printed between displays takes one, too."""

    def __init__(self) -> None:
        self._slots: list[str] = []  # display ids
        self._known: set[str] = set()  # the ids of all displays that ever took a slot
        self._lock = threading.RLock()
        self._rewind()

    def _rewind(self) -> None:
        self._used = 0
        self._taken: dict[str, str] = {}  # id of a display of this run -> its slot
        self._text, self._text_slot = "", ""
        self._timer: threading.Timer | None = None

    @contextlib.contextmanager
    def filled(self, shell: Any) -> Iterator[None]:
        """What this thread displays and prints goes to the slots; at the end, those left over are emptied."""
        self._rewind()
        shell.display_pub.register_hook(self._placed)
        try:
            with contextlib.redirect_stdout(_Prints(self)):
                yield
        finally:
            self._end_text()
            for slot in self._slots[self._used :]:
                _show("", slot, again=True)
            shell.display_pub.unregister_hook(self._placed)

    def _next(self) -> tuple[str, bool]:
        """The next slot, and whether the cell has it already."""
        there = self._used < len(self._slots)
        if not there:
            self._slots.append(os.urandom(16).hex())
        self._used += 1
        return self._slots[self._used - 1], there

    def _placed(self, message: dict) -> dict | None:
        """A hook of ipykernel: the message that is sent in place of this one."""
        kind, transient = message["header"]["msg_type"], message["content"].get("transient", {})
        name = transient.get("display_id")
        if kind == "clear_output":  # of the cell, and the controls stand in it
            self._end_text()
            self._used = 0
            return None
        if name in self._slots or (kind == "update_display_data" and name not in self._known):
            return message
        if kind == "update_display_data" and name in self._taken:
            slot, there = self._taken[name], True
        else:
            self._end_text()
            slot, there = self._next()
        if name is not None:
            self._taken[name] = slot
            self._known.add(name)
        transient["display_id"] = slot
        message["msg_type"] = message["header"]["msg_type"] = "update_display_data" if there else "display_data"
        return message

    def write(self, text: str) -> None:
        """Add text that was printed; the first is shown at once, the rest within `SHOW_EVERY`."""
        with self._lock:
            self._text = (self._text + text)[-MOST_TEXT:]
            if not self._text_slot:
                self._text_slot, there = self._next()
                _show(self._text, self._text_slot, again=there)
            elif self._timer is None:
                self._timer = threading.Timer(SHOW_EVERY, contextvars.copy_context().run, [self._show_text])
                self._timer.daemon = True
                self._timer.start()

    def _show_text(self) -> None:
        with self._lock:
            if self._timer is not None:  # else it ended in between
                self._timer = None
                _show(self._text, self._text_slot, again=True)

    def _end_text(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._show_text()
            self._text, self._text_slot = "", ""


class _Prints:
    """`sys.stdout` while a run is under way: what its thread prints goes to the slots, all else where it went."""

    def __init__(self, slots: Slots) -> None:
        self._slots, self._there, self._thread = slots, sys.stdout, threading.current_thread()

    def write(self, text: str) -> int:
        if threading.current_thread() is not self._thread:
            return self._there.write(text)
        self._slots.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._there, name)


def _show(text: str, slot: str, *, again: bool) -> None:
    from IPython.display import display, update_display

    (update_display if again else display)({"text/plain": text.rstrip("\n")}, raw=True, display_id=slot)
