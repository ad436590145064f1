"""What ranks print, in the running cell: each line labelled with its rank, as it comes."""

from __future__ import annotations

from collections import defaultdict

from .run import Run

MOST_LINES = 2_000  # printed lines a launch shows; a notebook that is sent more becomes unusable


class Printer:
    """Print what ranks print, each line labelled, up to `MOST_LINES`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rest: defaultdict[int, bytes] = defaultdict(bytes)
        self.lines = 0

    def show(self, rank: int, data: bytes) -> None:
        *lines, self.rest[rank] = (self.rest[rank] + data).split(b"\n")
        room = MOST_LINES - self.lines
        if room <= 0 or not lines:
            return
        self.lines += len(lines)
        # What several cores' one process printed below Python belongs to none of them.
        unit = self.run.unit
        label = "" if unit == "program" else f"[{unit} {rank}] " if rank < self.run.ranks else f"[{unit}s] "
        shown = [label + line.decode(errors="replace")[:1000] for line in lines[:room]]
        if len(lines) > room:
            shown.append(f"… more than {MOST_LINES} lines: the rest is in run.output[rank], not shown")
        print("\n".join(shown))

    def close(self) -> None:
        for rank, rest in list(self.rest.items()):
            if rest:
                self.show(rank, b"\n")
