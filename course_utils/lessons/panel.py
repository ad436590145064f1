"""The controls that `knobs` shows: one for each keyword, Run, Stop, and a line that says how things stand."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from ..errors import CourseError


def check(name: str, choice: Any) -> None:
    """Refuse, in words, what is no choice."""
    pair = isinstance(choice, tuple) and len(choice) == 2 and all(type(end) is int for end in choice)
    if not (isinstance(choice, bool) or (isinstance(choice, list) and choice) or (pair and choice[0] < choice[1])):
        raise CourseError(
            f"knobs(…, {name}={choice!r:.60}): give a list of choices ({name}=[1, 2, 4]), True or False, or the whole "
            f"numbers from low to high ({name}=(1, 8))."
        )


def first(choice: Any) -> Any:
    """The value that the first run takes."""
    return choice if isinstance(choice, bool) else choice[0]


def label_of(value: Any) -> str:
    """How a value is called: a function and a class by their name."""
    return getattr(value, "__name__", str(value))


class Panel:
    """The widgets, displayed in the running cell.

    The keyboard reaches each and a screen reader names it; therefore no slider: its handle has no name in ipywidgets.
    Run stays enabled while something runs, because a button that is disabled loses the keyboard.

    Attributes:
        stop: the button, to be enabled while it can do something.
        lost: a page was loaded again, asked for all widgets, and no longer follows what the cell displays.
    """

    def __init__(self, choices: dict[str, Any], on_run: Callable[[], None], on_stop: Callable[[], None]) -> None:
        from IPython.display import display
        from ipywidgets import HTML, Button, HBox, VBox

        self._choices = choices
        self._controls = {name: _control(name.replace("_", " "), choice) for name, choice in choices.items()}
        run = Button(description="Run", icon="play", tooltip="Run again with these values")
        self.stop = Button(description="Stop", icon="stop", tooltip="Stop the run; the last result stays")
        run.on_click(lambda _: on_run())
        self.stop.on_click(lambda _: on_stop())
        self._status = HTML()
        row = HBox([*self._controls.values(), run, self.stop], layout={"flex_flow": "row wrap"})
        bundle = VBox([row, self._status])._repr_mimebundle_()
        display(bundle | {"text/plain": f"controls, with a running kernel: {', '.join(choices)}"}, raw=True)
        self.lost = False
        self._state, self._status.get_state = self._status.get_state, self._asked

    def _asked(self, key: Any = None, drop_defaults: bool = False) -> dict:
        self.lost = self.lost or key is None
        return self._state(key, drop_defaults)

    def values(self) -> dict[str, Any]:
        """What the controls say now."""
        return {
            name: choice[self._controls[name].index] if isinstance(choice, list) else self._controls[name].value
            for name, choice in self._choices.items()
        }

    def say(self, text: str) -> None:
        """Put this in the line below the controls."""
        again = " This page was loaded again: run the cell to see results here." * self.lost
        self._status.value = f'<span role="status">{html.escape(text + again)}</span>'


def _control(name: str, choice: Any) -> Any:
    import ipywidgets

    look = {"layout": {"width": "max-content", "margin": "2px 12px 2px 2px"}, "style": {"description_width": "initial"}}
    if isinstance(choice, bool):
        return ipywidgets.Checkbox(choice, description=name, indent=False, **look)
    if isinstance(choice, list):
        labels = [label_of(value) for value in choice]
        return ipywidgets.Dropdown(options=labels, index=0, description=name, **look)
    low, high = choice
    return ipywidgets.BoundedIntText(low, low, high, description=f"{name} ({low:,} to {high:,})", **look)
