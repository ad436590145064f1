"""Curves in panels: as SVG in about a millisecond, for live frames, and as a PNG with matplotlib, to keep.

A panel is a name and its series, {rank or name: (x values, y values)}; values that are not finite leave a gap.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from .. import style
from .axes import Panel, Series, spread, text_of, tick_texts, x_span
from .picture import FONTS, Picture, blank, gridlines, to_png

Panels = Mapping[str, Mapping[int | str, Series]]

HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 226, 26, 40, 50, 60  # of a panel, px
GAP, LINE = 4, 20  # between panels; height of a line of text under them, px


def panel_svg(panel: Panel, width: int, *, x_title: str, alt: str, markers: bool = False) -> str:
    """One panel as an SVG that follows the page's colours."""
    w, h = width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    esc, grid, axis = html.escape, [], []
    for t, text in zip(panel.y_ticks, tick_texts(panel.y_ticks), strict=True):
        y = TOP + panel.at(panel.x1, t, w, h)[1]
        grid.append(f"M{LEFT} {y:.1f}h{w}")
        axis.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for t, text in zip(panel.x_ticks, tick_texts(panel.x_ticks), strict=True):
        x = LEFT + panel.at(t, panel.y1, w, h)[0]
        axis.append(f'<text x="{x:.1f}" y="{TOP + h + 16}" text-anchor="middle">{text}</text>')
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" {style.alt(alt)} fill="currentColor" '
        f'style="overflow:visible;flex:1 1 {min(width, 300)}px;min-width:0;max-width:{width}px;height:auto;'
        f'font:{style.SMALL}px {style.FONT}">',
        f'<text x="{LEFT}" y="14" font-size="{style.TEXT + 1}" font-weight="600">{esc(panel.name)}</text>',
        f'<path d="{"".join(grid)}" stroke="currentColor" stroke-opacity="{style.GRID}" fill="none"/>',
        f'<path d="M{LEFT} {TOP + h}h{w}" stroke="currentColor" stroke-opacity="{style.AXIS}" fill="none"/>',
        f'<g fill-opacity="{style.QUIET}">{"".join(axis)}'
        f'<text x="{LEFT + w / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{esc(x_title)}</text></g>',
    ]
    for i, (key, lines) in enumerate(panel.runs.items()):
        color, dash = style.color(key, i), style.dash(key, i)
        path, dots = [], []
        for line in lines:
            at = [panel.at(x, y, w, h) for x, y in line]
            path.append("M" + " ".join(f"{LEFT + x:.1f} {TOP + y:.1f}" for x, y in at))
            if markers or len(line) == 1:
                dots += [f'<circle cx="{LEFT + x:.1f}" cy="{TOP + y:.1f}" r="2.6"/>' for x, y in at]
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        out.append(f'<path d="{"".join(path)}" stroke="{color}" stroke-width="1.8" stroke-linejoin="round" '
                   f'fill="none"{dashes}/>')
        if dots:
            out.append(f'<g fill="{color}">{"".join(dots)}</g>')
    lasts = sorted(((*panel.at(x, y, w, h), key, i, y) for key, i, x, y in panel.lasts()), key=lambda f: f[1])
    beside = max((f[0] for f in lasts), default=0) + 7
    for place, (x, y, key, i, value) in zip(spread([f[1] for f in lasts], 13, 0, h - 6), lasts, strict=True):
        color = style.color(key, i)
        out.append(f'<circle cx="{LEFT + x:.1f}" cy="{TOP + y:.1f}" r="3" fill="{color}"/>'
                   f'<path d="M{LEFT + beside + 1:.1f} {TOP + place - 3:.1f}v7" stroke="{color}" stroke-width="3"/>'
                   f'<text x="{LEFT + beside + 6:.1f}" y="{TOP + place + 4:.1f}" font-weight="600">'
                   f"{text_of(value)}</text>")
    if panel.empty or panel.note:
        says = panel.note or "no value yet"
        out.append(f'<text x="{LEFT + w / 2:.0f}" y="{TOP + 14}" text-anchor="middle" font-weight="600">'
                   f"{esc(says)}</text>")
    return "".join(out) + "</svg>"


def panel_width(count: int) -> int:
    """Width in px of each of `count` panels, so that a row fills the page and the text keeps its size."""
    return {1: 560, 3: 250}.get(count, 376)


def legend_html(keys: Sequence[int | str], unit: str) -> str:
    """A row of line samples with their names; nothing for a single series."""
    if len(keys) < 2:
        return ""
    items = []
    for i, key in enumerate(keys):
        dash = f' stroke-dasharray="{style.dash(key, i)}"' if style.dash(key, i) else ""
        items.append(f'<span style="white-space:nowrap"><svg width="26" height="8" aria-hidden="true">'
                     f'<path d="M0 4h26" stroke="{style.color(key, i)}" stroke-width="2"{dash}/></svg> '
                     f"{html.escape(style.label(key, unit))}</span>")
    return f'<div style="display:flex;flex-wrap:wrap;gap:2px 16px;padding-left:8px">{"".join(items)}</div>'


def keys_of(panels: Panels) -> list[int | str]:
    """Every series of any panel, once, ranks in order."""
    keys = dict.fromkeys(key for series in panels.values() for key in series)
    return sorted(keys) if all(isinstance(key, int) for key in keys) else list(keys)


def svg(panels: Panels, *, alt: str, title: str = "", x_title: str = "step", total: float | None = None,
        log_x: bool = False, log_y: bool = False, markers: bool = False, unit: str = "rank") -> str:
    """Panels side by side (below each other where the page is narrow), a legend where there are several series."""
    width, x_range = panel_width(len(panels)), x_span(panels.values(), total=total, log_x=log_x)
    drawn = [
        panel_svg(Panel(name, series, x_range=x_range, log_x=log_x, log_y=log_y), width, x_title=x_title,
                  alt=f"{alt}: {name}", markers=markers)
        for name, series in panels.items()
    ]
    head = f'<div style="font-weight:600;padding-left:8px">{html.escape(title)}</div>' if title else ""
    return (f'<div style="max-width:{style.WIDTH}px;font:{style.TEXT}px {style.FONT}">{head}'
            f'<div style="display:flex;flex-wrap:wrap;gap:4px">{"".join(drawn)}</div>'
            f"{legend_html(keys_of(panels), unit)}</div>")


def png(panels: Panels, *, title: str = "", x_title: str = "step", total: float | None = None, log_x: bool = False,
        log_y: bool = False, markers: bool = False, foot: str = "", unit: str = "rank") -> bytes:
    """The same panels as a PNG at twice the pixels, transparent, its text readable on white and on black."""
    from matplotlib.lines import Line2D

    keys, names = keys_of(panels), list(panels)
    columns = len(names) if len(names) <= 3 else 2
    each, rows = panel_width(len(names)), -(-len(names) // columns)
    width = columns * (each + GAP) - GAP
    labels = [style.label(key, unit) for key in keys]
    wide = _legend_columns(labels, width)
    deep = -(-len(keys) // wide) if len(keys) > 1 else 0  # rows of the legend
    extra = LINE * (bool(title) + deep + bool(foot))
    height = rows * (HEIGHT + GAP) - GAP + extra
    figure = blank(width, height)
    top, x_range = LINE * bool(title), x_span(panels.values(), total=total, log_x=log_x)
    if title:
        figure.text(8 / width, 1 - 14 / height, title, **FONTS | {"fontsize": 9.7}, fontweight="bold", parse_math=False)
    for i, (name, series) in enumerate(panels.items()):
        panel = Panel(name, series, x_range=x_range, log_x=log_x, log_y=log_y)
        x = (i % columns) * (each + GAP) + LEFT
        y = top + (i // columns) * (HEIGHT + GAP) + TOP
        w, h = each - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        ax = figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height), facecolor="none")
        _paint(ax, panel, (w, h), x_title, markers)
    if len(keys) > 1:
        order = [i for column in range(wide) for i in range(column, len(keys), wide)]  # matplotlib fills columns
        lines = [Line2D([], [], color=style.color(keys[i], i), linestyle=_dash(keys[i], i), lw=1.5) for i in order]
        box = figure.legend(lines, [labels[i] for i in order], ncols=wide, frameon=False,
                            loc="lower left", bbox_to_anchor=(4 / width, (LINE * bool(foot) - 5) / height),
                            fontsize=FONTS["fontsize"], labelcolor=style.GREY, handlelength=2.6, borderpad=0.2)
        box.set_zorder(5)
    if foot:
        figure.text(8 / width, 5 / height, foot, **FONTS)
    return to_png(figure)


def curves_svg(panels: Panels, *, alt: str, title: str = "", x_title: str = "step", total: float | None = None,
               log_x: bool = False, log_y: bool = False, markers: bool = False) -> Picture:
    """Curves, a panel each: {panel: {rank or name: (x values, y values)}}; panels side by side, one legend."""
    return Picture(svg(panels, alt=alt, title=title, x_title=x_title, total=total, log_x=log_x, log_y=log_y,
                       markers=markers), alt)


def curves_png(panels: Panels, *, alt: str, title: str = "", x_title: str = "step", total: float | None = None,
               log_x: bool = False, log_y: bool = False, markers: bool = False, foot: str = "") -> Picture:
    """The same as a PNG, which every viewer of notebooks shows; `foot` is a line below."""
    drawn = png(panels, title=title, x_title=x_title, total=total, log_x=log_x, log_y=log_y, markers=markers,
                      foot=foot)
    return Picture(f"<p>{html.escape(alt)}</p>", alt, png=drawn)


def _legend_columns(labels: Sequence[str], width: int) -> int:
    """How many columns of a legend's lines and names fit into `width` px: six at most, in rows as even as can be."""
    for rows in range(-(-len(labels) // 6), len(labels)):
        wide = -(-len(labels) // rows)
        if sum(56 + 6.6 * max(map(len, labels[column::wide])) for column in range(wide)) <= width:
            return wide
    return 1


def _dash(key: int | str, position: int) -> object:
    pattern = style.dash(key, position)
    return (0, tuple(float(p) / 1.8 for p in pattern.split())) if pattern else "solid"


def _paint(ax: object, panel: Panel, size: tuple[float, float], x_title: str, markers: bool) -> None:
    """One panel on matplotlib axes, with the ticks, the gaps and the labels of the SVG."""
    ax.set_title(panel.name, loc="left", **FONTS | {"fontsize": 9.7}, fontweight="bold", pad=7, parse_math=False)
    ax.set_xlabel(x_title, labelpad=3, **FONTS)
    if panel.log_x:
        ax.set_xscale("log")
    if panel.log_y:
        ax.set_yscale("log")
    ax.set_xticks(panel.x_ticks, tick_texts(panel.x_ticks), **FONTS)
    ax.set_yticks(panel.y_ticks, tick_texts(panel.y_ticks), **FONTS)
    ax.minorticks_off()
    ax.set(xlim=(panel.x0, panel.x1), ylim=(panel.y0, panel.y1))
    gridlines(ax, "y")
    ax.spines["bottom"].set(visible=True, color=style.GREY)
    for i, (key, lines) in enumerate(panel.runs.items()):
        look = {"color": style.color(key, i), "linestyle": _dash(key, i), "lw": 1.35, "clip_on": False}
        for line in lines:
            marker = "o" if markers or len(line) == 1 else None
            ax.plot(*zip(*line, strict=True), marker=marker, ms=3.5, **look)
    w, h = size
    lasts = sorted(((*panel.at(x, y, w, h), key, i, y) for key, i, x, y in panel.lasts()), key=lambda f: f[1])
    beside = max((f[0] for f in lasts), default=0) + 7
    for place, (x, y, key, i, value) in zip(spread([f[1] for f in lasts], 13, 0, h - 6), lasts, strict=True):
        mark = {"ls": "", "color": style.color(key, i), "transform": ax.transAxes, "clip_on": False}
        ax.plot(x / w, 1 - y / h, marker="o", ms=4, **mark)
        ax.plot((beside + 1) / w, 1 - place / h, marker="s", ms=3.5, **mark)
        ax.text((beside + 6) / w, 1 - place / h, text_of(value), transform=ax.transAxes, va="center", weight="bold",
                **FONTS)
    if panel.empty or panel.note:
        ax.text(0.5, 1 - 10 / h, panel.note or "no value yet", transform=ax.transAxes, ha="center", fontweight="bold",
                **FONTS)
