"""What ranks print, as a terminal would show it: whole lines as they end, and below the cell the
lines that have not ended, such as a progress bar, in their newest state.
"""

import re
import time
from collections import Counter, defaultdict
from math import inf

from ..pictures.display import Display, shell
from ..style import size

MOST_BYTES = 64 << 20  # kept of what a rank prints
MOST_LINES = 2_000  # printed lines a launch shows; a notebook that is sent more becomes unusable
LAST_LINES = 20  # of each rank that are shown all the same, when it has ended
MOST_CHARACTERS = 1_000  # of a line that is shown
FRAME_SECONDS = 0.25  # between two states of unfinished lines; more and more, see `Status`
# How a line of C++'s logs begins, before the name of its file.
LOG = rb"^(?:\[rank\d+\]:)?(?:\[?[A-Z]\d{4} |\d{4}-\d\d-\d\d )[\d:.]+[^\]]*"
HIDDEN = re.compile(
    rb"^\[Gloo\] Rank \d+ is connected"  # torch 2.9 of every process group
    rb"|^WARNING: All log messages b"  # TorchTPU of itself
    rb"|^\S+: \w+: <TorchTpu/(ApiStage|Performance)/|"
    + LOG
    + rb"(rendezvous\.cc:\d+\]"  # XLA's CPU client of a core that is late
    rb"|\] Warning: (<TorchTpu/(ApiStage|Performance)/"
    rb"|The \.grad attribute"  # TorchTPU of its views
    rb"|Time stats are currently only collected for CPU and CUDA))"  # DDP on other devices
)
# What moves or hides a terminal's cursor, erases, or makes a link or a title; colours are text.
CONTROLS = re.compile(rb"\x1b\[[\d;?]*[A-Za-ln-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def newest(row: bytearray) -> bytes:
    """What a row shows: a carriage return begins it again."""
    return CONTROLS.sub(b"", row.rstrip(b"\r").rpartition(b"\r")[2])


def _ends_of(row: bytearray) -> bytearray:
    """Its begin and end, of which `cut` shows the same: a row may be long, and is shown often."""
    most = 4 * MOST_CHARACTERS  # bytes of so many characters
    return row if len(row) <= 2 * most else row[:most] + row[-most:]


def cut(line: bytes) -> str:
    """A line as it is shown: of a very long one its begin and end."""
    text = line.decode(errors="replace")
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"


class Output:
    """What the ranks of one launch print, kept by rank; with `show` the cell prints it, too."""

    def __init__(self, unit: str, *, show: bool) -> None:
        self.unit = unit
        self.show = show
        self.room = MOST_LINES
        self.printed: defaultdict[int | None, bytearray] = defaultdict(bytearray)
        self.dropped: Counter[int | None] = Counter()  # bytes
        self.rows: defaultdict[int | None, bytearray] = defaultdict(bytearray)  # unfinished
        self.unseen: defaultdict[int | None, list[bytes]] = defaultdict(list)

    def add(self, rank: int | None, data: bytes) -> None:
        """Take what a rank printed; None: cores that share a process, which tells not who."""
        row = self.rows[rank]
        row += data
        lines: list[bytearray] = []
        if b"\n" in data:
            *lines, row = row.split(b"\n")
            self.rows[rank] = row
        if b"\r" in data:
            del row[: row.rstrip(b"\r").rfind(b"\r") + 1]
        self.dropped[rank] += max(0, len(row) - MOST_BYTES)
        del row[:-MOST_BYTES]
        self._add_lines(rank, [newest(line) for line in lines])

    def _add_lines(self, rank: int | None, lines: list[bytes]) -> None:
        lines = [line for line in lines if not HIDDEN.search(line, 0, MOST_CHARACTERS)]
        text = b"".join(line + b"\n" for line in lines)
        if len(self.printed[rank]) < MOST_BYTES:
            self.printed[rank] += text
        else:
            self.dropped[rank] += len(text)
        if not self.show:
            return

        seen, unseen = lines[: self.room], lines[self.room :]
        self._print(rank, seen)
        self.room -= len(seen)
        if unseen and not self.unseen:
            print(f"… more than {MOST_LINES} lines: only the last of each {self.unit} follow.")
        if unseen:
            self.unseen[rank] = [*self.unseen[rank], *unseen][-LAST_LINES:]

    def _print(self, rank: int | None, lines: list[bytes]) -> None:
        if lines:
            label = self._label(rank)
            print("\n".join(label + cut(line) for line in lines))

    def unfinished(self) -> list[str]:
        """The rows that have not ended, as they are now, if they are to be shown."""
        if not self.show:
            return []
        rows = sorted(self.rows.items(), key=lambda item: item[0] or 0)
        shown = [(rank, newest(_ends_of(row))) for rank, row in rows]
        return [self._label(rank) + cut(text) for rank, text in shown if text.strip()]

    def _label(self, rank: int | None) -> str:
        if self.unit == "program":
            return ""
        return f"[{self.unit}s] " if rank is None else f"[{self.unit} {rank}] "

    def text(self, rank: int | None) -> str:
        """All that this rank has printed until now."""
        data = self.printed[rank] + newest(self.rows[rank])
        return data.decode(errors="replace")

    def texts(self, ranks: int) -> list[str]:
        """All that each rank printed, when no more will come."""
        for rank, row in self.rows.items():
            line = newest(row)
            if line.strip():  # else it is empty, or a bar that was erased
                self._add_lines(rank, [line])
            row.clear()
        for rank, lines in sorted(self.unseen.items(), key=lambda item: item[0] or 0):
            self._print(rank, lines)
        return [self._kept(rank) for rank in range(ranks)]

    def _kept(self, rank: int) -> str:
        text = self.printed[rank].decode(errors="replace")
        if more := self.dropped[rank]:
            text += f"… {size(more)} more were printed, and are not kept\n"
        return text


class Status:
    """A place below the cell's output, for what changes while the ranks run.

    Each state comes a little later than the last, so that a long run sends hundreds, not thousands.
    """

    def __init__(self) -> None:
        self._display = Display()
        self._text = self._wanted = ""  # shown, and to be shown
        self._due = -inf
        self._pause = FRAME_SECONDS

    def show(self, text: str) -> float:
        """Put this in place of what was shown, if a frame is due; seconds until the next one is."""
        now = time.monotonic()
        if text and not self._wanted:  # it may be a part of a line of which the rest is on its way
            self._due = max(self._due, now + FRAME_SECONDS)
        self._wanted = text
        if text != self._text and shell() is not None:
            if now < self._due:
                return self._due - now
            self._display.show({"text/plain": text})
            self._pause *= 1.01
            self._due = now + self._pause
        self._text = text
        return self._pause if text else inf

    def clear(self) -> None:
        """Show nothing, if there is something."""
        if self._text and shell() is not None:
            self._display.clear()
        self._text = ""
