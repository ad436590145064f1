"""Play a pipeline schedule through: each rank does its instructions in order, and a receive waits for its send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ground.errors import CourseError
from ..ground.timeline import Span, Timeline


def simulate(
    name: str, instructions: Sequence[Sequence[Any]], *, forward: float, backward: float, link: float
) -> Timeline:
    """The timeline of one step; sending does not keep a rank from computing. Seconds for one part of the model.

    instructions: those of each rank, as `Schedule` holds them.
    """
    seconds = {"forward": forward, "backward": backward}
    at, clock = [0] * len(instructions), [0.0] * len(instructions)  # each rank's next instruction, and its time
    arrives: dict[tuple, float] = {}
    spans: list[Span] = []
    moved = True
    while moved:
        moved = False
        for rank, mine in enumerate(instructions):
            while at[rank] < len(mine):
                step = mine[at[rank]]
                if step.name == "receive":
                    if step.message not in arrives:
                        break
                    clock[rank] = max(clock[rank], arrives[step.message])
                elif step.name == "send":
                    arrives[step.message] = clock[rank] + link
                    if link:
                        spans.append(Span(rank, str(step), clock[rank], clock[rank] + link, "communication"))
                else:
                    end = clock[rank] + seconds[step.name]
                    spans.append(Span(rank, label(*step[:3]), clock[rank], end))
                    clock[rank] = end
                at[rank] += 1
                moved = True
    stuck = [f"rank {r} waits for {steps[i].what} {steps[i].micro} from rank {steps[i].peer}"
             for r, (steps, i) in enumerate(zip(instructions, at, strict=True)) if i < len(steps)]  # fmt: skip
    if stuck:
        raise CourseError(f"{name} never ends, because each waits for another: {'; '.join(stuck)}.")
    return Timeline(spans, title=name)


def label(name: str, stage: int, micro: int) -> str:
    """Name of the span of a forward or backward, predicted or measured."""
    return f"{name} {micro} of part {stage}"
