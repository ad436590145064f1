"""Which part of which parameter lies on which rank: read off a module, and drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import style
from ..errors import CourseError
from ..pictures.picture import Picture
from ..pictures.png import blank, to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn

HIGH, WIDE, GAP = 100, 100, 22  # px of the largest drawn parameter, and between two


@dataclass(frozen=True)
class Part:
    """What one rank holds of one tensor: `shape` of `whole`, beginning at `start`, by dim."""

    name: str
    whole: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        ends = [a + n for a, n in zip(self.start, self.shape, strict=False)]
        if not len(self.whole) == len(self.start) == len(self.shape) or any(map(int.__gt__, ends, self.whole)):
            raise CourseError(f"Part {self.name!r}: {self.shape} from {self.start} does not lie inside {self.whole}.")


def parts(module: nn.Module) -> list[Part]:
    """The parts of the parameters that this rank holds; call it on every rank, after `parallelize_module` and the like.

    A parameter that is no `DTensor` lies whole on every rank.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as local_part

    found = []
    for name, p in module.named_parameters():
        whole = tuple(p.shape)
        shape, start = whole, (0,) * p.ndim
        if isinstance(p, DTensor):
            shape, start = local_part(p.shape, p.device_mesh, p.placements)
        found.append(Part(name, whole, tuple(start), tuple(shape)))
    return found


def picture(by_rank: Sequence[Sequence[Part]], *, title: str = "", unit: str = "rank") -> Picture:
    """Every parameter as a rectangle (dim 0 down, dim 1 across), each part in the colour of its rank.

    A side is as long as the square root of its size, so that small parameters can be seen, too.

    Args:
        by_rank: the results of `parts` by rank: `launch(…).results`.
        unit: what holds the parts, in words: "rank", "device".
    """
    named: dict[str, list[tuple[int, Part]]] = {}
    for rank, held in enumerate(by_rank):
        for part in held:
            named.setdefault(part.name, []).append((rank, part))
    if not named:
        raise CourseError("picture(): no parts to draw; pass what parts(model) returned, a list for each rank.")
    most = max(max((*held[0][1].whole, 1)) for held in named.values())
    columns = min(len(named), (style.WIDTH - GAP) // (WIDE + GAP))
    lines = math.ceil(len(named) / columns)
    width, height = style.WIDTH, 34 + lines * (HIGH + 56)
    figure = blank(width, height)
    says = finding(by_rank, unit=unit)
    figure.text(8 / width, 1 - 6 / height, f"{title}: {says}" if title else says, va="top", color=style.GREY,
                fontsize=9.7, fontweight="bold", parse_math=False)
    if len(by_rank) > 4:  # parts may be too thin for a number
        _legend(figure, len(by_rank), width, height)
    for i, held in enumerate(named.values()):
        left, top = GAP + i % columns * (WIDE + GAP), 34 + i // columns * (HIGH + 56)
        box = (left / width, 1 - (top + 36 + HIGH) / height, WIDE / width, HIGH / height)
        ax = figure.add_axes(box, facecolor="none")
        _draw(ax, held, most)
    where = "; ".join(f"{name} {' x '.join(map(str, held[0][1].whole))}: " + ", ".join(
        f"{unit} {rank} {_region(part)}" for rank, part in held) for name, held in named.items())
    return Picture("", f"{title + ': ' if title else ''}{says}. {where}", png=to_png(figure))


def finding(by_rank: Sequence[Sequence[Part]], *, unit: str = "rank") -> str:
    """What the picture shows, in one sentence."""
    whole = sum(math.prod(part.whole) for part in by_rank[0])
    held = [sum(math.prod(part.shape) for part in mine) / max(whole, 1) for mine in by_rank]
    least, most = min(held), max(held)
    share = f"{most:.0%}" if most - least < 0.005 else f"{least:.0%} to {most:.0%}"
    return f"each of {len(by_rank)} {unit}s holds {share} of the numbers"


def _region(part: Part) -> str:
    return "[" + ", ".join(f"{a}:{a + n}" for a, n in zip(part.start, part.shape, strict=True)) + "]"


def _legend(figure: Figure, ranks: int, width: int, height: int) -> None:
    """A number in its colour for each of the first ranks, in the upper right corner."""
    from matplotlib.patches import Rectangle

    for rank in range(shown := min(ranks, len(style.RANK))):
        x, y = width - 8 - 20 * (shown - rank), height - 21
        where = (x / width, y / height), 17 / width, 15 / height
        figure.add_artist(Rectangle(*where, color=style.color(rank), alpha=0.9, lw=0))
        figure.text((x + 8.5) / width, (y + 7.5) / height, rank, ha="center", va="center_baseline", color="white",
                    fontsize=style.SMALL * 0.72)


def _draw(ax: Axes, held: list[tuple[int, Part]], most: int) -> None:
    """One parameter: a part has the colour of the first rank that holds it; what all hold is grey, and says so."""
    from matplotlib.patches import Rectangle

    name, whole = held[0][1].name, held[0][1].whole
    down, across = (*whole, 1, 1)[:2] if whole else (1, 1)
    high, wide = (max(9.0, HIGH * math.sqrt(n / most)) for n in (down, across))
    same: dict[tuple, list[int]] = {}
    for rank, part in held:
        same.setdefault((part.start, part.shape), []).append(rank)
    for (start, shape), ranks in same.items():
        (y, x), (h, w) = ((*start, 0, 0)[:2], (*shape, 1, 1)[:2])
        x, w, y, h = x / across * wide, w / across * wide, y / down * high, h / down * high
        everywhere = len(ranks) == len(held) > 1
        seam = min(1.0, 0.2 * w, 0.2 * h)
        color, alpha = (style.GREY, 0.45) if everywhere else (style.color(ranks[0]), 0.9)
        ax.add_patch(Rectangle((x, y), w - seam, h - seam, color=color, alpha=alpha, lw=0))
        text = "all" if everywhere else ",".join(map(str, ranks))
        if w > 5.5 * len(text) + 4 and h > 11:
            ax.text(x + w / 2, y + h / 2, text, ha="center", va="center_baseline", fontsize=style.SMALL * 0.72,
                    color=style.GREY if everywhere else "white")
        elif everywhere:  # too narrow for a word inside
            ax.text(x + w + 4, y + h / 2, "all", va="center_baseline", fontsize=style.SMALL * 0.72, color=style.GREY)
    ax.set(xlim=(-1, WIDE), ylim=(HIGH, -1))
    ax.set_axis_off()
    ax.text(0, -8, f"{name}\n{' x '.join(map(str, whole))}", va="bottom", color=style.GREY, parse_math=False,
            fontsize=style.SMALL * 0.72, linespacing=1.25)
