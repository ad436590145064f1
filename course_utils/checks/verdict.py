"""What `check.…` answers with: a card in a notebook, elsewhere plain lines; true or false."""

import os
from dataclasses import dataclass
from html import escape

# The mark and the title carry the meaning; the colour (readable on white and on #111) repeats it.
_FACE = {
    "solved": ("✓", "Solved", "#009e73"),
    "wrong": ("✗", "Not right yet", "#d55e00"),
    "not yet": ("○", "Not yet", "#808080"),
}


@dataclass(repr=False)
class Verdict:
    """The answer to an answer; true when it was solved.

    `state` is "solved", "wrong" or "not yet" (the stub is still empty); `expected` and `got` are
    values in words.
    """

    exercise: str
    state: str
    text: str = ""
    expected: str = ""
    got: str = ""

    def __bool__(self) -> bool:
        return self.state == "solved"

    def _values(self) -> list[tuple[str, str]]:
        both = ("expected", self.expected), ("got", self.got)
        return [(name, value) for name, value in both if value]

    def __repr__(self) -> str:
        mark, title, _ = _FACE[self.state]
        head = f"{mark} {self.exercise}: {title}"
        if self.text:
            head += f". {self.text}"
        return "\n".join([head, *(f"  {name:<9}{value}" for name, value in self._values())])

    def _repr_html_(self) -> str:
        mark, title, colour = _FACE[self.state]
        code = "background:none;padding:0;white-space:pre-wrap;overflow-wrap:anywhere"
        card = (
            f"border-left:4px solid {colour};padding:6px 12px;margin:4px 0;max-width:720px;"
            "color:inherit;line-height:1.45"
        )
        rows = [
            f'<b style="color:{colour};font-size:1.15em">{mark}</b>&ensp;<b>{title}</b>&ensp;'
            f'<code style="opacity:0.75;{code}">{escape(self.exercise)}</code>'
        ]
        if self.text:
            rows.append(f'<span style="white-space:pre-wrap">{_code(self.text)}</span>')
        rows += [
            f'<span style="opacity:0.75;display:inline-block;min-width:70px">{name}</span>'
            f'<code style="{code}">{escape(value)}</code>'
            for name, value in self._values()
        ]
        if not self:
            more = "The hints are under the exercise."
            if offers_solutions():
                more += f" `check.{self.exercise}.solution()` prints a solution."
            rows.append(f'<span style="opacity:0.75;font-size:0.92em">{_code(more)}</span>')
        lines = "".join(f'<div style="margin-top:4px">{row}</div>' for row in rows)
        return f'<div role="status" style="{card}">{lines}</div>'


def offers_solutions() -> bool:
    """Not in a class that works with COURSE_SOLUTIONS=0 in its environment."""
    return os.environ.get("COURSE_SOLUTIONS") != "0"


def _code(text: str) -> str:
    """Escape, with `backticks` set as code."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return "".join(
        f'<code style="background:none;padding:0">{p}</code>' if i % 2 else p
        for i, p in enumerate(pieces)
    )
