"""One line in the cell while ranks hang: where each of them waits, and how long the time limit still is."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ..pictures.screen import Place, shell
from .failures import Stacks, doing

SILENCE = 10.0  # seconds without any news before ranks are asked where they are
AGAIN, LATER = 1.0, 5.0  # seconds until they are asked a second time, and from then on
BUSY = 0.2  # of a core: who computes with so much of one does not wait


class HangLine:
    """Tells of ranks that say nothing, when those that wait are still where they were soon after.

    Args:
        ask: where the ranks are, innermost frame first, the seconds of CPU time that they have used, and this in words.
        end: when the time limit ends them.
        spins: they are on accelerators; whoever reads a tensor there waits, and keeps a core busy with it.
    """

    def __init__(self, ask: Callable[[], tuple[Stacks, dict[int, float], str]], end: float, *, spins: bool) -> None:
        self.ask, self.end, self.spins = ask, end, spins
        self.heard = self.ask_at = self.asked_at = 0.0
        self.waiting: Stacks = {}  # those that waited when they were asked last
        self.used: dict[int, float] = {}
        self.line = ""
        self.place = Place()
        self.told = False  # where there is no notebook: once

    def tick(self, now: float, heard: float) -> float:
        """Do what is due, if the last news came at `heard`; returns the seconds until the next call."""
        if heard != self.heard:
            self.heard, self.ask_at, self.waiting = heard, heard + SILENCE, {}
            self.clear()
        if now >= self.ask_at:
            self._look(now)
        if self.line:
            limit = "" if self.end == inf else f" The time limit ends this in {max(0.0, self.end - now):.0f} s."
            self._show(f"Nothing heard for {now - heard:.0f} s: {self.line}.{limit}")
        return min(self.ask_at - now, 1.0 if self.line else inf)

    def _look(self, now: float) -> None:
        stacks, used, words = self.ask()
        waiting = {rank: frames for rank, frames in stacks.items() if frames and (self.spins or doing(frames) != "is")}
        most = inf if self.spins else BUSY * (now - self.asked_at)
        still = waiting == self.waiting and all(used[rank] - self.used[rank] < most for rank in waiting)
        if waiting and still:
            self.line, self.ask_at = words, now + LATER
        else:
            self.clear()
            waiting, self.ask_at = ({}, now + SILENCE) if self.waiting or not waiting else (waiting, now + AGAIN)
        self.waiting, self.used, self.asked_at = waiting, used, now

    def _show(self, text: str) -> None:
        if shell() is not None:
            self.place.show({"text/plain": text})
        elif not self.told:
            print(text)
        self.told = True

    def clear(self) -> None:
        """Take the line away."""
        if self.line:
            self.place.clear()
        self.line = ""
