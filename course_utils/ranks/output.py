"""What ranks print: kept by rank, and shown in the running cell line by line, each with its rank."""

from __future__ import annotations

import re
from collections import defaultdict

MOST_OUTPUT = 64 << 20  # bytes kept of what a rank prints
MOST_LINES = 2_000  # printed lines a launch shows; a notebook that is sent more becomes unusable

GLOO = re.compile(rb"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks\..*\n", re.MULTILINE)  # torch 2.9, every group


class Output:
    """What the ranks of one launch print; `unit` is what one of them is called, `show`: in the cell, too."""

    def __init__(self, unit: str, *, show: bool) -> None:
        self.unit, self.show = unit, show
        self.printed: defaultdict[int | None, bytearray] = defaultdict(bytearray)
        self.rest: defaultdict[int | None, bytes] = defaultdict(bytes)  # of a line that has not ended
        self.half: dict[int | None, bytes] = {}  # of gloo's line
        self.lines = 0  # shown

    def add(self, rank: int | None, data: bytes) -> None:
        """Take what a rank printed; None: no one of several cores in a process."""
        data = self.half.pop(rank, b"") + data
        start = data.rfind(b"\n") + 1
        if data[start:].startswith(b"[Gloo]"):  # the line comes in pieces
            self.half[rank], data = data[start:], data[:start]
        data = GLOO.sub(b"", data)
        self.printed[rank] += data[: max(0, MOST_OUTPUT - len(self.printed[rank]))]
        self._show(rank, data)

    def _show(self, rank: int | None, data: bytes) -> None:
        *lines, self.rest[rank] = (self.rest[rank] + data).split(b"\n")
        room = MOST_LINES - self.lines
        if not self.show or not lines or room <= 0:
            return
        self.lines += len(lines)
        label = "" if self.unit == "program" else f"[{self.unit}s] " if rank is None else f"[{self.unit} {rank}] "
        shown = [label + line.decode(errors="replace")[:1000] for line in lines[:room]]
        if len(lines) > room:
            shown.append(f"… more than {MOST_LINES} lines: the rest is in run.output[rank], not shown")
        print("\n".join(shown))

    def texts(self, ranks: int) -> list[str]:
        """All that each rank printed; shows the lines that have not ended."""
        for rank in [rank for rank, rest in self.rest.items() if rest]:
            self._show(rank, b"\n")
        return [bytes(self.printed[rank]).decode(errors="replace") for rank in range(ranks)]
