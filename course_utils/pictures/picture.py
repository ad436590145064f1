"""What a picture is: something a cell's last line shows, with a text for screen readers."""

from __future__ import annotations

import base64
import html
from typing import Any

from .png import png_width


class Picture:
    """Something to look at; the last line of a cell shows it. Its repr is the text that describes it."""

    def __init__(self, html: str, alt: str, *, png: bytes | None = None) -> None:
        self.html, self.alt, self.png = html, alt, png

    def __repr__(self) -> str:
        return self.alt

    def _repr_html_(self) -> str | None:
        return None if self.png else self.html

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]] | None:
        return (self.png, {"width": png_width(self.png), "alt": self.alt}) if self.png else None


def as_html(frame: object) -> str:
    """Whatever draws itself, as HTML: pictures, timelines, tables."""
    if shown := getattr(frame, "_repr_html_", lambda: None)():
        return shown
    png, look = frame._repr_png_()
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<img src="{source}" width="{look["width"]}" alt="{html.escape(look["alt"], quote=True)}">'
