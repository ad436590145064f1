"""Play a pipeline schedule through: each rank does its instructions in order, and a receive waits for its send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import CourseError
from .timeline import Span, Timeline

if TYPE_CHECKING:
    from .schedules import Schedule


def simulate(schedule: Schedule, forward: float, backward: float, link: float) -> Timeline:
    """The timeline of one step; sending does not keep a rank from computing. Seconds for one part of the model."""
    seconds = {"forward": forward, "backward": backward}
    at, clock = [0] * schedule.ranks, [0.0] * schedule.ranks  # each rank's next instruction, and its time
    arrives: dict[tuple, float] = {}
    spans: list[Span] = []
    moved = True
    while moved:
        moved = False
        for rank, instructions in enumerate(schedule.instructions):
            while at[rank] < len(instructions):
                step = instructions[at[rank]]
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
             for r, (steps, i) in enumerate(zip(schedule.instructions, at, strict=True)) if i < len(steps)]  # fmt: skip
    if stuck:
        raise CourseError(f"{schedule.name} never ends, because each waits for another: {'; '.join(stuck)}.")
    return Timeline(spans, title=schedule.name)


def label(name: str, stage: int, micro: int) -> str:
    """Name of the span of a forward or backward, predicted or measured."""
    return f"{name} {micro} of part {stage}"
