"""Frames to step through: HTML and JavaScript that need nothing from outside, not even each other."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence

from .. import style
from ..errors import CourseError
from .picture import Picture, as_html
from .scripts import script


def player(frames: Iterable[object], *, title: str, alt: str, captions: Sequence[str] | None = None) -> Picture:
    """Frames to step through with buttons, a slider or the arrow keys; works in a saved page with no kernel.

    Args:
        frames: pictures, timelines, or HTML or SVG strings; without JavaScript the first one is shown.
        captions: a line below each frame.
    """
    frames = [frame if isinstance(frame, str) else as_html(frame) for frame in frames]
    if not frames:
        raise CourseError(f"player(title={title!r}) got no frames: give it at least one picture.")
    if captions is not None and len(captions) != len(frames):
        raise CourseError(f"player(title={title!r}) got {len(captions)} captions for {len(frames)} frames: one each.")
    data = {"frames": frames, "captions": list(captions) if captions else None}
    # "</script>" inside a frame must not end the script that holds it.
    stored = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    first = f"1 of {len(frames)}" + (f": {captions[0]}" if captions else "")
    page = (
        f'<div data-course-player data-lm-suppress-shortcuts="true" role="group" '
        f'aria-label="{html.escape(f"{title}: {alt}", quote=True)}" '
        f'style="max-width:{style.WIDTH}px;font:{style.TEXT}px {style.FONT};padding:4px 8px">'
        f'<div style="font-weight:600;font-size:{style.TEXT + 1}px;padding-bottom:4px">{html.escape(title)}</div>'
        f"<div data-stage>{frames[0]}</div>"
        f'<div data-line aria-live="polite" style="min-height:18px">{html.escape(first)}</div>'
        f'<script type="application/json">{stored}</script><script>{script("player.js")}</script></div>'
    )
    return Picture(page, f"{title}: {alt}")
