"""Play a pipeline schedule through: each rank does its instructions in order, once what they need has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import CourseError
from ..timeline import Span, Timeline

NEEDS = {"forward": "activations", "backward": "gradients", "backward-input": "gradients"}


def simulate(
    name: str, instructions: Sequence[Sequence[Any]], *, forward: float, backward: float, link: float
) -> Timeline:
    """The timeline of one step; sending does not keep a rank from computing. Seconds for one part of the model.

    instructions: those of each rank, as `Schedule` holds them.
    """
    half = {"backward-input": backward / 2, "backward-weight": backward / 2}
    seconds = {"forward": forward, "backward": backward} | half
    at, clock = [0] * len(instructions), [0.0] * len(instructions)  # each rank's next instruction, and its time
    arrives: dict[tuple, float] = {}
    due: dict[tuple, Any] = {}  # what a rank has begun to receive, by what it is for
    spans: list[Span] = []
    moved = True
    while moved:
        moved = False
        for rank, mine in enumerate(instructions):
            while at[rank] < len(mine):
                step = mine[at[rank]]
                if step.name == "receive":
                    due[step.what, step.stage, step.micro] = step
                elif step.name == "send":
                    arrives[step.message] = clock[rank] + link
                    if link:
                        spans.append(Span(rank, str(step), clock[rank], clock[rank] + link, "communication"))
                else:
                    need = due.get((NEEDS.get(step.name), step.stage, step.micro))
                    if need and need.message not in arrives:
                        break
                    start = max(clock[rank], arrives[need.message]) if need else clock[rank]
                    clock[rank] = start + seconds[step.name]
                    spans.append(Span(rank, label(*step[:3]), start, clock[rank]))
                at[rank] += 1
                moved = True
    waits = [(rank, mine[i]) for rank, (mine, i) in enumerate(zip(instructions, at, strict=True)) if i < len(mine)]
    stuck = [f"rank {rank} waits for {what} {step.micro} from rank {due[what, step.stage, step.micro].peer}"
             for rank, step in waits for what in [NEEDS[step.name]]]
    if stuck:
        raise CourseError(f"{name} never ends, because each waits for another: {'; '.join(stuck)}.")
    return Timeline(spans, title=name)


def label(name: str, stage: int, micro: int) -> str:
    """Name of the span of a forward, a backward or a half of one, predicted or measured."""
    return f"{name} {micro} of part {stage}"
