"""Which part of which parameter lies on which rank: read off a module, and drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import style
from .picture import FONTS, HEADING, SMALL, Box, Picture, draw_boxes, sheet, to_png

if TYPE_CHECKING:
    from torch import nn

# Px of the longest side that is drawn, of the space between two, and of a line of them.
SIDE, GAP, LINE = 100, 22, 156


class Part(NamedTuple):
    """What one rank holds of one tensor: `shape` of `whole`, beginning at `start`, by dim."""

    name: str
    whole: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]


def parts(module: nn.Module) -> list[Part]:
    """The parts of the parameters that this rank holds; call it on every rank, after
    `parallelize_module` and the like.

    A parameter that is no `DTensor` lies whole on every rank.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as local_part

    found = []
    for name, p in module.named_parameters():
        shape, start = p.shape, (0,) * p.ndim
        if isinstance(p, DTensor):
            shape, start = local_part(p.shape, p.device_mesh, p.placements)
        found.append(Part(name, tuple(p.shape), tuple(start), tuple(shape)))
    return found


def finding(by_rank: Sequence[Sequence[Part]], *, unit: str = "rank") -> str:
    """What the picture shows, in one sentence."""
    whole = sum(math.prod(part.whole) for part in by_rank[0])
    held = [sum(math.prod(part.shape) for part in mine) / whole for mine in by_rank]
    least, most = (math.floor(100 * share + 0.5) for share in (min(held), max(held)))  # 12.5: 13
    share = f"{most}%" if most == least else f"{least}% to {most}%"
    return f"each of {len(by_rank)} {unit}s holds {share} of the numbers"


def picture(by_rank: Sequence[Sequence[Part]], *, title: str, unit: str = "rank") -> Picture:
    """Every parameter as a rectangle (dim 0 down, dim 1 across), each part in the colour of its
    rank.

    A side is as long as the square root of its size, so that small parameters can be seen, too.

    Args:
        by_rank: the results of `parts` by rank: `launch(…).results`.
        unit: what holds the parts, in words: "rank", "device".
    """
    tensors = [*zip(*by_rank, strict=True)]  # the parts of each, by rank
    columns = min(len(tensors), (style.WIDTH - GAP) // (SIDE + GAP))
    height = 34 + math.ceil(len(tensors) / columns) * LINE
    says = f"{title}: {finding(by_rank, unit=unit)}"
    ax = sheet(max(GAP + columns * (SIDE + GAP), 24 + 8 * len(says)), height)
    ax.text(8, 6, says, va="top", **HEADING)

    most = max(n for parts in tensors for n in parts[0].whole)
    where = []
    for i, parts in enumerate(tensors):
        label = f"{parts[0].name} {' x '.join(map(str, parts[0].whole))}"
        _draw(ax, parts, label, GAP + i % columns * (SIDE + GAP), 70 + i // columns * LINE, most)
        said = ", ".join(f"{unit} {rank} [{_slices(part)}]" for rank, part in enumerate(parts))
        where.append(f"{label}: {said}")
    return Picture("", f"{says}. {'; '.join(where)}", png=to_png(ax.figure))


def _slices(part: Part) -> str:
    """`0:32, 64:128`."""
    dims = zip(part.start, part.shape, strict=True)
    return ", ".join(f"{start}:{start + size}" for start, size in dims)


def _draw(ax: Any, parts: Sequence[Part], label: str, left: float, top: float, most: int) -> None:
    """One parameter: a part has the colour of the first rank that holds it; what all hold is
    hollow, and says so.
    """
    down, across = (*parts[0].whole, 1, 1)[:2]
    # Px of one row, and of one column.
    high, wide = (max(9.0, SIDE * math.sqrt(n / most)) / n for n in (down, across))
    name = label.replace(" ", "\n", 1)
    ax.text(left, top - 8, name, va="bottom", linespacing=1.25, **FONTS | {"fontsize": SMALL})
    same: dict[tuple, list[int]] = {}
    for rank, part in enumerate(parts):
        same.setdefault((part.start, part.shape), []).append(rank)

    boxes = []
    for (start, shape), ranks in same.items():
        (row, column), (rows, columns) = (*start, 0, 0)[:2], (*shape, 1, 1)[:2]
        x, y = left + wide * column, top + high * row
        w, h = wide * columns, high * rows
        if len(ranks) == len(parts) > 1:  # hollow: grey is the colour of a rank, too
            boxes.append(Box(x, w, y, h, "none", style.GREY))
            ax.text(x + w + 4, y + h / 2, "all", va="center_baseline", **FONTS)
        else:
            seam = min(1.0, 0.2 * h)
            text = ",".join(map(str, ranks))
            boxes.append(Box(x, w, y, h - seam, style.color(ranks[0]), "none", text))
    draw_boxes(ax, boxes)
