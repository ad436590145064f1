"""What `check.…` answers with: true or false, a small card in a notebook, a few plain lines elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

# The mark and the title carry the meaning; the colour (readable on white and on #111) repeats it.
_FACE = {
    "solved": ("✓", "Solved", "#009e73"),
    "wrong": ("✗", "Not right yet", "#d55e00"),
    "not yet": ("○", "Not yet", "#808080"),
    "hint": ("?", "Hint", "#3a86c8"),
}


@dataclass(repr=False)
class Verdict:
    """The answer to an answer; true when it was solved.

    state: "solved", "wrong", "not yet" (the stub is still empty) or "hint". `line` is the learner's line that raised.
    """

    exercise: str
    state: str
    text: str = ""
    expected: str = ""
    got: str = ""
    line: str = ""
    hints: tuple[str, ...] = ()
    hints_total: int = 0

    def __bool__(self) -> bool:
        return self.state == "solved"

    def _next(self) -> str:
        """What the learner can do now: the next hint, or the solution when there is none left."""
        if self or not self.hints_total:
            return ""
        if len(self.hints) < self.hints_total:
            return f"`check.{self.exercise}.hint()` gives {'the next' if self.hints else 'a first'} hint."
        return f"`check.{self.exercise}.solution()` prints the published solution."

    def __repr__(self) -> str:
        mark, title, _ = _FACE[self.state]
        rows = [f"{mark} {self.exercise}: {title}" + (f". {self.text}" if self.text else "")]
        rows += [f"  {line}" for line in self.line.splitlines()]
        rows += [f"  {name:<9}{value}" for name, value in (("expected", self.expected), ("got", self.got)) if value]
        rows += [f"  hint {i} of {self.hints_total}: {hint}" for i, hint in enumerate(self.hints, 1)]
        rows += [f"  {self._next()}"] if self._next() else []
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        mark, title, colour = _FACE[self.state]
        parts = [
            f'<div><b style="color:{colour};font-size:1.15em">{mark}</b>&ensp;<b>{title}</b>'
            f'&ensp;<code style="opacity:0.75;background:none;padding:0">{escape(self.exercise)}</code></div>'
        ]
        if self.text:
            parts.append(f'<div style="margin-top:4px;white-space:pre-wrap">{_code(self.text)}</div>')
        if self.line:
            parts.append(
                '<pre style="margin:6px 0 0;padding:4px 8px;background:none;color:inherit;white-space:pre-wrap;'
                f'border:1px solid rgba(128,128,128,0.4);border-radius:4px">{escape(self.line)}</pre>'
            )
        rows = [
            f'<div style="display:flex;gap:12px;margin-top:2px"><span style="opacity:0.75;min-width:62px">{name}</span>'
            f'<code style="background:none;padding:0;white-space:pre-wrap;overflow-wrap:anywhere">{escape(value)}'
            "</code></div>"
            for name, value in (("expected", self.expected), ("got", self.got))
            if value
        ]
        parts += [f'<div style="margin-top:6px">{"".join(rows)}</div>'] if rows else []
        parts += [
            f'<div style="margin-top:6px"><span style="opacity:0.75">Hint {i} of {self.hints_total}</span>&ensp;'
            f"{_code(hint)}</div>"
            for i, hint in enumerate(self.hints, 1)
        ]
        if self._next():
            parts.append(f'<div style="margin-top:6px;opacity:0.75;font-size:0.92em">{_code(self._next())}</div>')
        return (
            f'<div role="status" style="border-left:4px solid {colour};padding:6px 12px;margin:4px 0;max-width:720px;'
            f'color:inherit;line-height:1.45">{"".join(parts)}</div>'
        )


def _code(text: str) -> str:
    """Escape, with `backticks` set as code."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return "".join(f'<code style="background:none;padding:0">{p}</code>' if i % 2 else p for i, p in enumerate(pieces))
