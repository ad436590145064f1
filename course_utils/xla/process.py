"""The process (on a TPU: the processes) of a TPU's cores, seen from the notebook: ranks that share one."""

from __future__ import annotations

import re

from ..ranks.crew import Crew, Member
from ..ranks.failures import Stacks
from . import core as inside

# XLA's CPU client waits 5 s for a late core, says so, and after 10 s ends the process.
RENDEZVOUS, STUCK = b"rendezvous.cc", "may be stuck"
LATE = re.compile(r"Expected (?P<expected>\d+) threads .* only (?P<arrived>\d+) of them arrived")
MOST_SAID = 1 << 16


class Cores(Crew):
    """All cores of one launch; with SPMD one program that has them all."""

    main = staticmethod(inside.main)
    said = ""  # what XLA said last
    stuck: Stacks | None = None  # where all were when XLA said that they may be stuck

    def groups(self) -> list[list[int]]:
        return [list(range(self.run.ranks))]

    def who(self, rank: int) -> str:
        return "the SPMD program" if self.run.unit == "program" else super().who(rank)

    def heard_output(self, member: Member, data: bytes) -> None:
        self.said = (self.said + data.decode(errors="replace"))[-MOST_SAID:]
        if STUCK in self.said and self.stuck is None:  # when it ends them, several threads abort at once
            self.stuck = self.where(self.unfinished())
        if lines := [line for line in data.splitlines(keepends=True) if RENDEZVOUS not in line]:
            self.output.add(None, b"".join(lines))

    def death(self, member: Member) -> tuple[str, str]:
        if late := LATE.search(self.said):
            return "Stuck", (
                f"{late['arrived']} of {late['expected']} cores reached a collective, and XLA ended them all after "
                "waiting for the others: every core must run the same program, collectives included"
            )
        return super().death(member)

    def where(self, ranks: list[int]) -> Stacks:
        return self.stuck if self.stuck and LATE.search(self.said) else super().where(ranks)
