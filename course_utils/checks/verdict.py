"""What `check.…` answers with: true or false, a small card in a notebook, a few plain lines elsewhere."""

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

    `state` is "solved", "wrong" or "not yet" (the stub is still empty); `expected` and `got` are values in words.
    """

    exercise: str
    state: str
    text: str = ""
    expected: str = ""
    got: str = ""

    def __bool__(self) -> bool:
        return self.state == "solved"

    @property
    def _values(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in (("expected", self.expected), ("got", self.got)) if value]

    @property
    def _next(self) -> str:
        solution = f"`check.{self.exercise}.solution()` prints a solution."
        return "" if self else f"The hints are under the exercise; {solution}"

    def __repr__(self) -> str:
        mark, title, _ = _FACE[self.state]
        rows = [f"{mark} {self.exercise}: {title}" + (f". {self.text}" if self.text else "")]
        return "\n".join([*rows, *(f"  {name:<9}{value}" for name, value in self._values)])

    def _repr_html_(self) -> str:
        mark, title, colour = _FACE[self.state]
        parts = [
            f'<b style="color:{colour};font-size:1.15em">{mark}</b>&ensp;<b>{title}</b>'
            f'&ensp;<code style="opacity:0.75;background:none;padding:0">{escape(self.exercise)}</code>',
            f'<span style="white-space:pre-wrap">{_code(self.text)}</span>',
            *(
                f'<span style="opacity:0.75;display:inline-block;min-width:70px">{name}</span><code style="background:'
                f'none;padding:0;white-space:pre-wrap;overflow-wrap:anywhere">{escape(value)}</code>'
                for name, value in self._values
            ),
            f'<span style="opacity:0.75;font-size:0.92em">{_code(self._next)}</span>' if self._next else "",
        ]
        rows = "".join(f'<div style="margin-top:4px">{part}</div>' for part in parts if part)
        return (
            f'<div role="status" style="border-left:4px solid {colour};padding:6px 12px;margin:4px 0;max-width:720px;'
            f'color:inherit;line-height:1.45">{rows}</div>'
        )


def _code(text: str) -> str:
    """Escape, with `backticks` set as code."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return "".join(f'<code style="background:none;padding:0">{p}</code>' if i % 2 else p for i, p in enumerate(pieces))
