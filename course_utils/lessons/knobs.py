"""`knobs`: a cell's last line that the reader runs again with other values, and stops, without editing code.

The cell itself runs the function once, and what comes of it is ordinary output, which stays in the saved notebook. Run
starts a thread, so that the kernel hears Stop, and other cells run meanwhile. There is one run at a time.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import CourseError
from ..pictures.screen import Screen
from ..pictures.slots import Slots
from ..ranks import stopping
from .panel import Panel, check, first, label_of

_turn = threading.Lock()  # held by the run that is under way
_now: _Knobs | None = None  # whose run was the last to begin

# In an output JupyterLab takes keys for its own: ArrowDown in a list of choices would go to the next cell, B make one.
KEYS = """<span data-course-keys></span><script>
document.querySelectorAll("[data-course-keys]").forEach(function (mark) {
  var area = mark.closest(".jp-OutputArea");
  if (area) area.addEventListener("keydown", function (e) { e.stopPropagation(); });
});</script>"""


def knobs(function: Callable, /, **choices: Any) -> None:
    """Run `function` with the first value of each keyword, show what it returns, and let the reader run it again.

    Run calls it with the values chosen; Stop interrupts it: a launch with all its ranks, a loop at its next line.
    The last result stays until there is another; what a run prints and draws meanwhile stands below it.
    In a script, the function is called once, with the first values.

    Args:
        function: called with one value for each keyword.
        choices: a list of choices, True or False, or (low, high) for the whole numbers from low to high.

    Example: `knobs(lambda ranks: launch(train, ranks=ranks).timeline, ranks=[1, 2, 4])`
    """
    __tracebackhide__ = True
    if not callable(function):
        raise CourseError(f"knobs({function!r:.60}, …): the first argument is the function to run, not its result.")
    for name, choice in choices.items():
        check(name, choice)
    if Screen.shell() is None:
        function(**{name: first(choice) for name, choice in choices.items()})
        return
    while not _turn.acquire(timeout=0.1):  # perhaps of this cell's last execution, whose Stop is gone
        if _now is not None:
            _now.stop()
    try:
        _Knobs(function, choices).run(in_cell=True)
    finally:
        _turn.release()


class _Knobs:
    """The controls of one cell, and the runs that they start."""

    def __init__(self, function: Callable, choices: dict[str, Any]) -> None:
        from IPython.display import display

        self.function, self.shell = function, Screen.shell()
        self.thread: threading.Thread | None = None  # the one that is in `function`, where Stop may interrupt it
        self.panel = Panel(choices, self.start, self.stop)
        self.result = display({"text/html": KEYS, "text/plain": ""}, raw=True, display_id=True)
        self.shown = ""  # the values that it belongs to
        self.slots = Slots()
        self.context = contextvars.copy_context()  # by it, what a thread shows finds the cell

    def start(self) -> None:
        """What Run does."""
        threading.Thread(target=self.context.copy().run, args=[self.take_turn], daemon=True).start()

    def take_turn(self) -> None:
        """Run if no run is under way."""
        if _turn.acquire(blocking=False):
            try:
                self.run()
            finally:
                _turn.release()
        elif _now is not self:
            self.panel.say(f"Another run is under way: stop it, or wait for its end.{self.kept()}")

    def stop(self) -> None:
        """What Stop does; nothing when nothing runs."""
        with stopping.sending:
            thread, self.thread = self.thread, None
            if thread is not None:
                self.panel.say("Stopping …")
                stopping.interrupt(thread)

    def run(self, *, in_cell: bool = False) -> None:
        """Call the function here, and show what comes of it; `in_cell`: raise what it raises."""
        global _now
        __tracebackhide__ = True
        _now, values = self, self.panel.values()
        label = ", ".join(f"{name} = {label_of(value)}" for name, value in values.items()) or "no choices"
        self.panel.stop.disabled = in_cell  # then the kernel hears no button but the notebook's own
        self.panel.say(f"Running with {label} …")
        began = time.perf_counter()
        try:
            with self.slots.filled(self.shell):
                result, error = self.call(values, None if in_cell else threading.current_thread())
                if error is None:
                    self.show(result)
                elif not (in_cell or isinstance(error, KeyboardInterrupt)):
                    self.show_error(error)
        finally:
            self.panel.stop.disabled = True
        took = f"{time.perf_counter() - began:.1f} s"
        if error is None:
            self.shown = self.shown if self.panel.lost else label
            first = " In a notebook that was just opened, run this cell before you press Run." * in_cell
            self.panel.say(f"Done: {label}; it took {took}.{first}")
        else:
            how = "Stopped" if isinstance(error, KeyboardInterrupt) else f"Ended by {type(error).__name__}"
            self.panel.say(f"{how} after {took}.{self.kept()}")
        if in_cell and error is not None:
            raise error

    def kept(self) -> str:
        return f" The result shown is that of {self.shown}." if self.shown else ""

    def call(self, values: dict[str, Any], thread: threading.Thread | None) -> tuple[Any, BaseException | None]:
        """What the function returns, or raises; Stop interrupts `thread` meanwhile."""
        __tracebackhide__ = True
        try:
            try:
                self.thread = thread
                return self.function(**values), None
            finally:
                self.thread = None
                stopping.settle()
        except BaseException as error:
            return None, error

    def show(self, result: Any) -> None:
        """What the last line of a cell would show, in place of the last result."""
        data, metadata = ({}, {}) if result is None else self.shell.display_formatter.format(result)
        self.result.update(data or {"text/plain": ""}, raw=True, metadata=metadata)

    def show_error(self, error: BaseException) -> None:
        """What a cell would show."""
        from IPython.display import display

        begin = error.__traceback__.tb_next or error.__traceback__  # without `call`
        render = getattr(error, "_render_traceback_", None)
        table = self.shell.InteractiveTB
        lines = render() if render else table.structured_traceback(type(error), error, begin)
        text = "\n".join(lines)
        display({"application/vnd.jupyter.stderr": text, "text/plain": text}, raw=True)
