"""What a rank has in place of the notebook's page and keyboard."""

import io
from typing import Any, NoReturn

RETURN_IT = "(a rank has no page to show a figure on: return it, and the notebook shows it)"


class NoKeyboard(io.TextIOBase):
    """What a rank reads from: nobody types there."""

    def readline(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            "a rank has no keyboard for input() and breakpoint(): print what you want to see, or "
            "run the function itself in the notebook"
        )

    read = readline

    def fileno(self) -> int:
        return 0


def display(*values: Any, **_: Any) -> None:
    """IPython's `display` in a rank: the text of each value."""
    for value in values:
        is_figure = type(value).__module__.startswith("matplotlib.")
        print(value, RETURN_IT) if is_figure else print(value)
