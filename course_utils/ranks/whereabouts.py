"""Where each rank is, as it says twice a second; while ranks hang, the cell shows it."""

import time
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from ..errors import Frame
from ..pictures.screen import Place, shell
from .failures import Stacks, doing, scene
from .run import Run

SILENCE = 10.0  # seconds
BUSY = 0.2  # of a core: who computes with so much of one does not wait


class At(NamedTuple):
    """Where a rank is, innermost frame first, since when, and the seconds of CPU time it had used then."""

    frames: list[Frame]
    used: float
    since: float


class Whereabouts:
    """Where the ranks of one launch were when they said so last."""

    def __init__(self, run: Run) -> None:
        self.run = run
        # Who reads a tensor on an accelerator waits, and keeps a core busy with it.
        self.spins = run.device in ("cuda", "xpu")
        self.at: dict[int, At] = {}
        self.place, self.shown = Place(), ""

    def hear(self, rank: int, frames: list[Frame], used: float) -> None:
        """A rank says where it is, and how much CPU time it has used."""
        now, was = time.monotonic(), self.at.get(rank, At([], 0.0, -inf))
        computes = not self.spins and used - was.used > BUSY * (now - was.since)
        if computes or frames != was.frames:
            self.at[rank] = At(frames, used, now)

    def of(self, ranks: Iterable[int]) -> Stacks:
        """Where these ranks are; no frames for one that has not said it."""
        return {rank: self.at[rank].frames if rank in self.at else [] for rank in ranks}

    def tell(self, heard: float, done: set[int], end: float) -> None:
        """Show that ranks wait, in a cell that has heard nothing since `heard`, or take this away when they go on."""
        now = time.monotonic()
        waiting = (
            rank not in done and now - at.since >= SILENCE and (self.spins or doing(at.frames) != "is")
            for rank, at in self.at.items()
        )
        if now - heard < SILENCE or not any(waiting):
            self.clear()
        elif shell() is not None:
            lines = [f"Nothing heard for {now - heard:.0f} s.", *scene(self.run, done, self.of(range(self.run.ranks)))]
            if end < inf:
                lines[0] += f" The time limit ends this in {max(0.0, end - now):.0f} s."
            if self.shown != (text := "\n".join(lines)):
                self.place.show({"text/plain": text})
                self.shown = text

    def clear(self) -> None:
        """Take away what is shown."""
        if self.shown:
            self.place.clear()
        self.shown = ""
