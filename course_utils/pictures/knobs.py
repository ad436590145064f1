"""`knobs`: the last line of a cell that the reader runs again with other values."""

import asyncio
import contextlib
import contextvars
import html
import io
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import in_words
from .display import Display, drawing_in, shell

# In an output JupyterLab takes keys for its own: ArrowDown in a list would go to the next cell.
KEYS = """<span data-course-keys></span><script>
document.querySelectorAll("[data-course-keys]").forEach(function (mark) {
  var area = mark.closest(".jp-OutputArea");
  if (area) area.addEventListener("keydown", function (e) { e.stopPropagation(); });
});</script>"""


def knobs(function: Callable, /, **choices: list) -> None:
    """Run `function` with the first value of each keyword, show what it returns, and let the reader
    run it again.

    Run calls it with the values chosen, Jupyter's own Stop ends it. A script calls it once, with
    the first values.
    Example: `knobs(lambda ranks: launch(train, ranks=ranks).timeline, ranks=[1, 2, 4])`
    """
    __tracebackhide__ = True
    if shell() is None:
        function(**{name: values[0] for name, values in choices.items()})
    else:
        _Knobs(function, choices).run(in_cell=True)


class _Knobs:
    """The controls of one cell, and the runs that they start."""

    def __init__(self, function: Callable, choices: dict[str, list]) -> None:
        from IPython.display import display
        from ipywidgets import HTML, Button, Dropdown, HBox, VBox

        self.function = function
        self.choices = choices
        self.controls: dict[str, Any] = {
            name: Dropdown(
                options=[getattr(value, "__name__", str(value)) for value in values],
                description=name.replace("_", " "),
                layout={"width": "max-content", "margin": "2px 12px 2px 2px"},
                style={"description_width": "initial"},
            )
            for name, values in choices.items()
        }
        button = Button(description="Run", icon="play")
        button.on_click(self.ask)
        self.state = HTML()
        row = HBox([*self.controls.values(), button], layout={"flex_flow": "row wrap"})
        bundle = VBox([row, self.state])._repr_mimebundle_()
        text = f"controls, with a running kernel: {', '.join(choices)}"
        display(bundle | {"text/plain": text}, raw=True)

        self.result, self.printed, self.plot = Display(), Display(), Display()
        self.result.show({"text/html": KEYS, "text/plain": ""})
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()  # runs show in this cell
        self.asked = False  # whether a run is not yet answered
        self.shown = ""  # the values that the result belongs to

    def ask(self, _: object) -> None:
        """Run as soon as the kernel is free; what is clicked until that run has ended asks for
        nothing more.
        """
        if self.asked:
            return
        self.asked = True
        if threading.current_thread() is threading.main_thread():
            self.context.run(self.run)
        else:  # some kernels hear widgets in a thread of their own, which Stop does not interrupt
            self.say("Waiting for the kernel …")
            self.loop.call_soon_threadsafe(self.run, context=self.context)

    def say(self, text: str, *, over: bool = False) -> None:
        """Beside the button; `over`: a click asks for another run from now on."""
        if over:
            self.asked = False
        look = "white-space:pre-wrap;line-height:1.5"
        self.state.value = f'<div role="status" style="{look}">{html.escape(text)}</div>'

    def run(self, *, in_cell: bool = False) -> None:
        """Call the function with the values chosen, and show what comes of it; `in_cell`: raise
        what it raises.
        """
        __tracebackhide__ = True
        chosen = {
            name: self.choices[name][control.index] for name, control in self.controls.items()
        }
        label = ", ".join(f"{name} = {control.label}" for name, control in self.controls.items())
        self.say(f"Running with {label} … Jupyter's stop button ends it.")
        self.plot.clear()
        said = ""
        printed = io.StringIO()
        began = time.perf_counter()
        outside = signal.getsignal(signal.SIGINT)
        try:
            try:
                # Between cells a kernel ignores it.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                with drawing_in(self.plot), contextlib.redirect_stdout(printed):
                    result = self.function(**chosen)
            finally:
                signal.signal(signal.SIGINT, outside)
        except BaseException as error:
            signal.signal(signal.SIGINT, outside)  # when the interrupt came after the function
            said = "Stopped."
            if not isinstance(error, KeyboardInterrupt):
                said = "\n".join(in_words(error, error))
            if self.shown:
                said += f"\nThe result shown is that of {self.shown}."
            if in_cell:
                raise
        else:
            if result is None:
                self.result.clear()
            else:
                self.result.show(*shell().display_formatter.format(result))
            self.shown = label
            said = f"Done: {label}; it took {time.perf_counter() - began:.1f} s."
        finally:
            if text := printed.getvalue().rstrip("\n"):
                self.printed.show({"text/plain": text})
            else:
                self.printed.clear()

            if in_cell:
                self.say(said)
            else:  # clicks of meanwhile may be heard only now
                self.loop.call_later(0.05, partial(self.say, said, over=True))
