"""Frames to step through: HTML and JavaScript that need nothing from outside, not even each other."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from . import style
from .errors import CourseError

# Finds every player of the page that has no controls yet, so that several copies of this script do not meet, and no
# player needs an id. Without JavaScript there are no dead buttons: only the first frame is in the page.
SCRIPT = """
(function () {
  function build(root) {
    root.setAttribute("data-ready", "");
    var data = JSON.parse(root.querySelector("script[type='application/json']").textContent), at = 0, timer = null;
    var stage = root.querySelector("[data-stage]"), line = root.querySelector("[data-line]");
    var bar = document.createElement("div"), n = data.frames.length;
    bar.style.cssText = "display:flex;align-items:center;gap:6px;padding:4px 0";
    function button(sign, name, act) {
      var b = document.createElement("button");
      b.type = "button"; b.textContent = sign; b.title = name; b.setAttribute("aria-label", name); b.onclick = act;
      b.style.cssText = "font:inherit;color:inherit;background:rgba(128,128,128,.15);min-width:34px;height:28px;" +
        "border:1px solid rgba(128,128,128,.5);border-radius:4px;cursor:pointer";
      bar.appendChild(b); return b;
    }
    function show(i) {
      at = Math.max(0, Math.min(n - 1, i));
      stage.innerHTML = data.frames[at];
      line.textContent = (at + 1) + " of " + n + (data.captions ? ": " + data.captions[at] : "");
      slider.value = at; slider.setAttribute("aria-valuetext", line.textContent);
      back.disabled = at === 0; next.disabled = at === n - 1;
      back.style.opacity = at === 0 ? .4 : 1; next.style.opacity = at === n - 1 ? .4 : 1;
    }
    function stop() {
      clearInterval(timer); timer = null; play.textContent = "\\u25B6"; play.title = "Play";
      play.setAttribute("aria-label", "Play");
    }
    function go(i) { stop(); show(i); }
    function toggle() {
      if (timer) { stop(); return; }
      if (at === n - 1) show(0);
      play.textContent = "\\u275A\\u275A"; play.title = "Pause"; play.setAttribute("aria-label", "Pause");
      timer = setInterval(function () {
        if (!root.isConnected) { clearInterval(timer); return; }
        show(at + 1); if (at === n - 1) stop();
      }, 1000);
    }
    var back = button("\\u2039", "Step back", function () { go(at - 1); });
    var play = button("\\u25B6", "Play", toggle);
    var next = button("\\u203A", "Step forward", function () { go(at + 1); });
    var slider = document.createElement("input");
    slider.type = "range"; slider.min = 0; slider.max = n - 1; slider.step = 1;
    slider.style.cssText = "flex:1;max-width:260px;min-width:80px"; slider.setAttribute("aria-label", "Step");
    slider.oninput = function () { go(+slider.value); };
    bar.appendChild(slider);
    root.insertBefore(bar, line);
    root.addEventListener("keydown", function (e) {
      var to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: n - 1}[e.key];
      if (to !== undefined) { e.preventDefault(); go(to); }
      e.stopPropagation();
    });
    show(0);
  }
  document.querySelectorAll("[data-course-player]:not([data-ready])").forEach(build);
})();
"""


def draw(frames: Sequence[str], *, title: str, alt: str, captions: Sequence[str] | None = None) -> str:
    """The player as HTML."""
    if not frames:
        raise CourseError(f"player(title={title!r}) got no frames: give it at least one picture.")
    if captions is not None and len(captions) != len(frames):
        raise CourseError(f"player(title={title!r}) got {len(captions)} captions for {len(frames)} frames: one each.")
    data = {"frames": list(frames), "captions": list(captions) if captions else None}
    # "</script>" inside a frame must not end the script that holds it.
    stored = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    first = f"1 of {len(frames)}" + (f": {captions[0]}" if captions else "")
    return (
        f'<div data-course-player data-lm-suppress-shortcuts="true" role="group" '
        f'aria-label="{html.escape(f"{title}: {alt}", quote=True)}" '
        f'style="max-width:{style.WIDTH}px;font:{style.TEXT}px {style.FONT};padding:4px 8px">'
        f'<div style="font-weight:600;font-size:{style.TEXT + 1}px;padding-bottom:4px">{html.escape(title)}</div>'
        f"<div data-stage>{frames[0]}</div>"
        f'<div data-line aria-live="polite" style="min-height:18px">{html.escape(first)}</div>'
        f'<script type="application/json">{stored}</script><script>{SCRIPT}</script></div>'
    )
